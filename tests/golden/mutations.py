"""Edits of the sources that move numbers, each with the golden run that has to catch it."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    caught_by: str  # the name of a golden run


OPTIMIZER, SCHEDULE = "lra/training/optimizer.py", "lra/training/schedule.py"
LOADER = "lra/data/loader.py"
BACKBONE, EMBEDDING = "lra/model/backbone.py", "lra/model/embedding.py"
CHECKPOINTS, RUN = "lra/training/checkpoints.py", "lra/training/run.py"
CALLBACKS, PRETRAIN = "lra/training/callbacks.py", "lra/model/pretrain.py"
# The edits that a hash of the code once missed, or that matter most.
FIRST = [
    Mutation(
        "clipping at twice the norm",
        "lra/training/trainer.py",
        '"gradient_clip_val": recipe.clip_at if',
        '"gradient_clip_val": 2 * recipe.clip_at if',
        "_step",
    ),
    Mutation(
        "the worst checkpoint is kept",
        CHECKPOINTS,
        'better(evaluated["score"], self.best["score"])',
        'better(self.best["score"], evaluated["score"])',
        "_selection",
    ),
    Mutation(
        "weights of the next seed",
        RUN,
        "torch.manual_seed(run.seed)",
        "torch.manual_seed(run.seed + 1)",
        "_seeding",
    ),
    Mutation(
        "order of the data",
        LOADER,
        "default_rng([self.seed, epoch]).perm",
        "default_rng([self.seed, epoch + 1]).perm",
        "_data",
    ),
    Mutation(
        "warm-up from above 0",
        SCHEDULE,
        "min(1.0, s / recipe.warmup)",
        "min(1.0, (s + 1) / recipe.warmup)",
        "_schedule",
    ),
    Mutation(
        "mask of the loss",
        "lra/metrics/target.py",
        "labels.flatten(), ignore_index=IGNORED)",
        "labels.flatten().clamp_min(0))",
        "_step",
    ),
    Mutation(
        "place of dropout",
        BACKBONE,
        "x = x + self.dropout(self.attention(self.norm1(x, mask), mask))",
        "x = self.dropout(x + self.attention(self.norm1(x, mask), mask))",
        "_backbone",
    ),
    Mutation(
        "scale of softmax",
        "luna/attention/softmax.py",
        "dropout.attend(q, k, v, visible, self.dropout_p)",
        "dropout.attend(1.1 * q, k, v, visible, self.dropout_p)",
        "softmax",
    ),
]
OTHERS = [
    Mutation(
        "scale of softmax in the public codes",
        "luna/attention/softmax.py",
        "scores = q @ k.mT / self.head_dim**0.5",
        "scores = q @ k.mT / self.head_dim**0.4",
        "softmax",
    ),
    Mutation(
        "floor of a cosine", SCHEDULE, "return 0.4 + 0.6 *", "return 0.3 + 0.7 *", "_schedule"
    ),
    Mutation(
        "cycle of beta1", SCHEDULE, "0.95 - 0.10 * height", "0.95 - 0.05 * height", "_schedule"
    ),
    Mutation(
        "highest rate of a group",
        SCHEDULE,
        "1.0 if most is None else min(1.0, most / peak())",
        "1.0",
        "_schedule",
    ),
    Mutation(
        "decay of all parameters",
        OPTIMIZER,
        "{} if group.decay or",
        "{} if True or",
        "_optimizer",
    ),
    Mutation(
        "epsilon of AdamW", OPTIMIZER, '"eps": recipe.eps', '"eps": 10 * recipe.eps', "_optimizer"
    ),
    Mutation(
        "climb of SAM", "lra/training/sam.py", "norms).norm() + TINY", "norms).sum()", "_optimizer"
    ),
    Mutation("average of weights", CALLBACKS, "(1 + step) / (10", "(2 + step) / (10", "_step"),
    Mutation(
        "patience",
        CALLBACKS,
        "if self.waited >= self.patience and",
        "if self.waited > self.patience and",
        "_step",
    ),
    Mutation("seed of dropout", "lra/training/module.py", "1_000_003", "1_000_033", "_step"),
    Mutation(
        "first step of selection",
        CHECKPOINTS,
        "if step > self.select_after",
        "if step >= self.select_after",
        "_selection",
    ),
    Mutation(
        "checkpoint that is reported",
        RUN,
        'select = wanted if wanted in tested else "last"',
        'select = "last"',
        "_selection",
    ),
    Mutation("lengths of waves", EMBEDDING, "math.log(10000)", "math.log(1000)", "_embedding"),
    Mutation("a hidden CLS token", EMBEDDING, "value=True)", "value=False)", "_embedding"),
    Mutation("rotary base", "lra/model/rotary.py", "= 10_000.0", "= 1_000.0", "_embedding"),
    Mutation(
        "mean over padding",
        "lra/model/heads.py",
        "/ real.sum(1).clamp_min(1)",
        "/ x.shape[1]",
        "_backbone",
    ),
    Mutation(
        "draw of weights",
        "lra/model/init.py",
        "xavier_uniform_(weight)",
        "xavier_normal_(weight)",
        "_backbone",
    ),
    Mutation(
        "end of an epoch", LOADER, "first = -epoch * self.n % self.batch", "first = 0", "_data"
    ),
    Mutation(
        "mask on a device",
        "lra/data/device.py",
        "return positions < self",
        "return positions <= self",
        "_data",
    ),
    Mutation(
        "inputs held out",
        "lra/data/arrays.py",
        "rows = rows[::every] if held",
        "rows = rows[1::every] if held",
        "_data",
    ),
    Mutation("draws of noise", "lra/metrics/metric.py", "DRAWS = 200", "DRAWS = 100", "_scoring"),
    Mutation(
        "share of masked tokens",
        PRETRAIN,
        "labels != IGNORED, self.rate)",
        "labels != IGNORED, self.rate / 2)",
        "_pretraining",
    ),
    Mutation(
        "rate of stage 2",
        "luna/convert/stage2.py",
        "self.clip = settings.clip",
        "self.clip = settings.clip / 50",
        "_conversion",
    ),
    Mutation(
        "inverse of nystrom",
        "luna/attention/nystrom.py",
        "Z @ (13 * identity",
        "Z @ (12 * identity",
        "nystrom",
    ),
    Mutation(
        "length of keys of reformer",
        "luna/attention/reformer.py",
        "keepdim=True) + 1e-6).rsqrt()",
        "keepdim=True) + 1e-5).rsqrt()",
        "reformer",
    ),
    Mutation(
        "angles of cosformer",
        "luna/attention/cosformer.py",
        "theta = (math.pi / 2 * i",
        "theta = (math.pi / 2.1 * i",
        "cosformer",
    ),
]
EVERY = [*FIRST, *OTHERS]
