"""A data job: tables of numbers and text, grouped, joined and sorted."""
import numpy
import pandas

numbers = numpy.random.default_rng(1)
rows = 1_200_000
table = pandas.DataFrame({"key": numbers.integers(0, 5000, rows), "x": numbers.random(rows), "y": numbers.random(rows)})
table["name"] = ("n" + (table["key"] % 97).astype(str))
means = table.groupby("key")[["x", "y"]].mean()
joined = table.merge(means, on="key", suffixes=("", "_mean"))
joined = joined.sort_values(["name", "x"])
print(joined["x_mean"].sum(), numpy.linalg.svd(numbers.random((400, 400)))[1][0])
