"""Pages from templates: a sentence is written if what it requires holds, or else named."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.base.errors import UserError
from lra.cli import main
from lra.report.pages import CALLS, HEAD, shown, signed, templates, to, written
from lra.report.study import Study
from lra.results.export import export

from ..synthetic import Make, frame, table

Capture = pytest.CaptureFixture[str]

PAGE = """\
# How good is LUNA?

{% set luna = cell("t", "luna") %}
{% set linear = cell("t", "linear") %}
{% require luna.least > linear.largest %}
* LUNA has {{ luna }} %, `linear` {{ linear.score | to(2) }}:
  {{ (luna.score - linear.score) | signed }}.
  And another sentence.

{% macro at(row) -%}
{{ cell("t", row) }} |
{{ cell("t", row).list }}
{%- endmacro %}
| in % | score | seeds |
| --- | --: | --: |
| LUNA | {{ at("luna") }} |
"""
WRITTEN = """\
# How good is LUNA?

* LUNA has 42.0 ± 1.4 %, `linear` 31.00:
  +11.0.
  And another sentence.

| in % | score | seeds |
| --- | --: | --: |
| LUNA | 42.0 ± 1.4 | 41.0, 43.0 |
"""


@pytest.fixture
def study(make: Make, runs: Path, tmp_path: Path) -> Study:
    for seed, (luna, linear) in enumerate([(0.41, 0.3), (0.43, 0.32)], start=1):
        make("luna", luna, seed=seed)
        make("linear", linear, seed=seed)
    made = table(runs)
    assert made.spec.name == "t"
    all_runs = frame(runs)
    return Study(tmp_path / "results", all_runs, all_runs, [made])


def template(study: Study, text: str, name: str = "page.md.jinja") -> str:
    path = study.folder / "pages" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return name


def problem(study: Study, text: str) -> str:
    """The one sentence that a template gets as its answer; no page is written."""
    template(study, text)
    pages, (sentence,) = written(study)
    assert not pages
    assert "\n" not in sentence
    return sentence


def test_a_page_reads_like_its_template(study: Study):
    template(study, PAGE)
    head = HEAD.format("results/pages/page.md.jinja")
    assert written(study) == ({study.folder / "page.md": head + WRITTEN}, [])


def test_a_page_of_the_folder_above(study: Study):
    template(study, "Two rows: {{ cells('t').number }}.\n", "above/README.md.jinja")
    pages, _ = written(study)
    (text,) = [text for place, text in pages.items() if place == study.folder.parent / "README.md"]
    assert text.endswith("-->\nTwo rows: 2.\n")
    template(study, "No.", "deeper/page.md.jinja")
    with pytest.raises(UserError, match="a template lies in pages/ or in pages/above/"):
        [*templates(study.folder)]


def test_a_false_condition_is_named_with_its_line_and_its_sentence(study: Study):
    template(study, "Two rows: {{ cells('t').number }}.\n", "other.md.jinja")
    template(study, PAGE.replace("luna.least >", "luna.least <"))
    pages, (sentence,) = written(study)
    assert [*pages] == [study.folder / "other.md"]  # the others are written
    assert sentence == (
        "pages/page.md.jinja, line 5: no longer true: luna.least < linear.largest; of the sentence "
        "'* LUNA has {{ luna }} %, `linear` {{ linear.score | to(2) }}: "
        "{{ (luna.score - linear.s...'"
    )


def test_every_false_condition_of_a_page_is_named(study: Study):
    template(
        study,
        "{% require 1 > 2 %}\nOne.\n\n{% require 2 > 3 %}\n{% require 1 < 2 %}\nTwo. Three.\n",
    )
    _, sentences = written(study)
    assert [sentence.partition(", ")[2] for sentence in sentences] == [
        "line 1: no longer true: 1 > 2; of the sentence 'One.'",
        "line 4: no longer true: 2 > 3; of the sentence 'Two.'",
    ]


def test_a_tie_is_not_more(study: Study):
    page = '\n{% set a = cell("t", "luna") %}\n{% require a.score > a.score %}\nLUNA leads.\n'
    assert "line 3: no longer true: a.score > a.score" in problem(study, page)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ('cell("u", "luna")', "there is no table 'u'"),
        ('cell("t", "lunar")', "t has no row 'lunar'; did you mean luna or linear?"),
        ('cell("t", "luna", "image")', "t has no column 'image'"),
        ('cell("t")', "missing 1 required positional argument: 'row'"),
        ('cell("t", "luna").scores', "has no field 'scores'; did you mean score"),
        ('cells("t")', "t, listops has several fields: number, methods"),
        ('rule("t")', "fit all of them (lra data baseline)"),
        ('rule("t", "bag")', "t has no rule 'bag'"),
        ('effect("t", setting="M")', "effects of t"),
        ('lines("../x.csv", "rate")', "there is no file '../x.csv'"),
        ('published("chess").least', "nothing is published of any row on chess"),
        ('records("none").number', "no run of records/none"),
        ("luna.score", "'luna' is undefined"),
        ("celll('t', 'luna')", "'celll' is undefined"),
        ("1 / 0", "division by zero"),
        ("1 +", "unexpected"),
        ("'x' | to", "'x' is no number that can be written"),
        ("1.5 | to(12)", "a number has 0 to 9 digits"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(study: Study, words: str, answer: str):
    sentence = problem(study, f"First.\n\nIt is {{{{ {words} }}}}.\n")
    assert sentence.startswith("pages/page.md.jinja, line 3: ")
    assert answer in sentence


def test_a_name_that_hides_a_call_is_a_mistake(study: Study):
    page = '{% set cell = cell("t", "luna") %}\n{{ cell.score }}, {{ cell("t", "linear") }}\n'
    assert "a name that was set hides the call of the same name" in problem(study, page)


@pytest.mark.parametrize(
    "words",
    [
        "().__class__.__bases__",
        "cell.__globals__",
        "cell('t', 'luna').__class__",
        "cell('t', 'luna')._known",
        "cell.func.__globals__",
        "self.__init__.__globals__",
        "'a' * 10**9",
        "'a' * 1000000000",
        "9 ** 9 ** 9",
        "'{0.__class__}'.format(1)",
        "range(1000000000) | list",
    ],
)
def test_a_page_runs_no_code_and_takes_no_memory(study: Study, words: str):
    assert "line 1: " in problem(study, f"{{{{ {words} }}}}\n")


def test_a_template_includes_no_file_of_elsewhere(study: Study):
    (study.folder.parent / "secret").write_text("s3cret", encoding="utf-8")
    (study.folder.parent / "results").mkdir(exist_ok=True)
    assert "../../secret" in problem(study, "{% include '../../secret' %}\n")


def test_a_measured_number_that_is_typed_is_named(study: Study):
    page = (
        "# Title 1.5\n\nLUNA, `code 2.5` [link](page-3.5.md) of 32 pairs at a rate of 0.003.\n\n"
        "{% typed 'The paper has 35.7' %}\nThe paper has\n35.7. {{ 2.5 }} is none.\n\n"
        "But 12.5, and 7 %.\n"
    )
    template(study, page)
    pages, sentences = written(study)
    assert not pages
    assert [sentence.partition(" is typed")[0] for sentence in sentences] == [
        "pages/page.md.jinja, line 9: the number 12.5",
        "pages/page.md.jinja, line 9: the number 7",
    ]


def test_numbers_are_written_as_printed():
    assert [*map(shown, (1.25, -1.24, 1234, -3, "a-b", True))] == (
        ["1.3", "−1.2", "1,234", "−3", "a-b", "True"]
    )
    assert (to(1234.4, 0), to(-0.04), signed(3.14159, 2), signed(-2.0)) == (
        "1,234",
        "−0.0",
        "+3.14",
        "−2.0",
    )


def test_twelve_calls_at_most_each_with_a_sentence():
    assert len(CALLS) <= 12
    assert all(call.__doc__ for call in CALLS)


def test_the_commands_write_and_check_pages(
    make: Make, runs: Path, tmp_path: Path, capsys: Capture
):
    make("luna", 0.4)
    results = tmp_path / "results"
    export({results / "records" / "mine.jsonl": [runs]})
    page = results / "pages" / "page.md.jinja"
    page.parent.mkdir()
    page.write_text("{% require records().number == 1 %}\n{{ records() }} run.\n", encoding="utf-8")
    assert main(["table", "--write", "--results", str(results)]) == 0
    assert (results / "page.md").read_text(encoding="utf-8").endswith("-->\n1 run.\n")
    assert main(["table", "--check", "--results", str(results)]) == 0
    (results / "page.md").write_text("2 runs.\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["table", "--check", "--results", str(results)])
    page.write_text("{% require records().number == 2 %}\n{{ records() }} run.\n", encoding="utf-8")
    capsys.readouterr()
    assert main(["table", "--write", "--results", str(results)]) == 2
    assert "line 1: no longer true: records().number == 2" in capsys.readouterr().err
    assert (results / "page.md").read_text(encoding="utf-8") == "2 runs.\n"  # as it was
