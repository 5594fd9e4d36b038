"""Pathfinder at four sizes: the task, the generator that draws its images, the official folders."""
