"""Search spaces: the unit cube to hyperparameters and back, and invalid spaces."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from levelfield.errors import SpaceError
from levelfield.space import Axis, Choice, Fixed, Integer, Log, Space, Uniform, dimension, parse_axis

UNITS = st.floats(0.0, 1.0)
NAN, INF = math.nan, math.inf


def specs_of_logs(low: float = 1e-12, high: float = 1e12) -> st.SearchStrategy[dict]:
    """Log ranges of at least 1% relative width."""
    starts = st.floats(low, high / 1.01)
    return starts.flatmap(lambda start: st.floats(start * 1.01, high).map(lambda end: {"log": [start, end]}))


def specs_of_uniforms() -> st.SearchStrategy[dict]:
    starts, widths = st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)
    return st.builds(lambda start, width: {"uniform": [start, start + width]}, starts, widths)


def specs_of_integers() -> st.SearchStrategy[dict]:
    starts, widths = st.integers(-1000, 1000), st.integers(1, 1000)
    return st.builds(lambda start, width: {"integer": [start, start + width]}, starts, widths)


def specs_of_choices() -> st.SearchStrategy[dict]:
    values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8, unique=True)
    return values.map(lambda values: {"choice": values})


RANGES = st.one_of(specs_of_logs(), specs_of_uniforms(), specs_of_integers())
FREE = st.one_of(RANGES, specs_of_choices())


# One dimension


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (0.9, Fixed(0.9)),
        (3, Fixed(3)),
        (True, Fixed(True)),
        ("bfloat16", Fixed("bfloat16")),
        ({"log": [1e-3, 1]}, Log(1e-3, 1.0)),
        ({"uniform": [-1, 2]}, Uniform(-1.0, 2.0)),
        ({"integer": [1, 5]}, Integer(1, 5)),
        ({"choice": [1e-3, "a", False]}, Choice((1e-3, "a", False))),
    ],
)
def test_a_dimension_is_parsed_and_written_unchanged(spec, expected):
    assert dimension(spec) == expected
    assert dimension(spec).spec() == spec


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ({"log": [1e-4, 1e0]}, [1e-4, 1e-3, 1e-2, 1e-1, 1e0]),
        ({"uniform": [-1.0, 3.0]}, [-1.0, 0.0, 1.0, 2.0, 3.0]),
        ({"integer": [1, 4]}, [1, 2, 3, 4, 4]),
        ({"choice": ["a", "b", "c", "d"]}, ["a", "b", "c", "d", "d"]),
        (7.5, [7.5] * 5),
    ],
)
def test_quarters_of_the_unit_interval_have_known_values(spec, values):
    quarters = [dimension(spec).value(unit) for unit in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert quarters == (values if isinstance(values[0], str) else pytest.approx(values, rel=1e-14))


def test_only_ranges_and_choices_are_free():
    assert not dimension(0.9).free
    for spec in ({"log": [1, 2]}, {"uniform": [1, 2]}, {"integer": [1, 2]}, {"choice": [1]}):
        assert dimension(spec).free


@given(spec=FREE, unit=UNITS)
def test_values_lie_inside_the_range(spec, unit):
    parsed = dimension(spec)
    value = parsed.value(unit)
    if "choice" in spec:
        assert value in spec["choice"]
    else:
        low, high = parsed.ends
        assert low <= value <= high


@example(ends=[3, 29], unit=1.0)
@given(ends=st.lists(st.integers(0, 100), min_size=2, max_size=2, unique=True).map(sorted), unit=UNITS)
def test_rounding_does_not_leave_a_uniform_range(ends, unit):
    low, high = (end / 100 for end in ends)
    assert low <= Uniform(low, high).value(unit) <= high


@given(spec=RANGES, units=st.tuples(UNITS, UNITS))
def test_a_range_is_monotone(spec, units):
    low, high = sorted(units)
    assert dimension(spec).value(low) <= dimension(spec).value(high)


@given(spec=st.one_of(specs_of_logs(), specs_of_uniforms()), unit=UNITS)
def test_continuous_ranges_invert_to_the_same_unit_coordinate(spec, unit):
    # A narrow range far from zero resolves values only up to the rounding errors of its ends.
    parsed = dimension(spec)
    resolution = 1e-12 / (parsed.high / parsed.low - 1) if "log" in spec else 1e-9 / (parsed.high - parsed.low)
    assert parsed.unit(parsed.value(unit)) == pytest.approx(unit, abs=1e-12 + resolution)


@given(spec=st.one_of(specs_of_integers(), specs_of_choices()), unit=UNITS)
def test_discrete_dimensions_invert_to_the_same_value(spec, unit):
    parsed = dimension(spec)
    value = parsed.value(unit)
    assert 0 < parsed.unit(value) < 1
    assert parsed.value(parsed.unit(value)) == value


@given(spec=specs_of_integers())
def test_integers_share_the_unit_interval_equally(spec):
    parsed, (low, high) = dimension(spec), spec["integer"]
    values = [parsed.value((i + 0.5) / (high - low + 1)) for i in range(high - low + 1)]
    assert values == list(range(low, high + 1))
    assert all(isinstance(value, int) for value in values)


@pytest.mark.parametrize(
    ("spec", "value", "outside"),
    [
        ({"log": [1e-2, 1e0]}, 1e1, 1.5),
        ({"log": [1e-2, 1e0]}, 1e-3, -0.5),
        ({"log": [1e-2, 1e0]}, 0.0, -INF),
        ({"log": [1e-2, 1e0]}, -1.0, -INF),
        ({"uniform": [0.0, 2.0]}, 3.0, 1.5),
        ({"integer": [1, 4]}, 5, 1.125),
        ({"integer": [1, 4]}, 0, -0.125),
        ({"choice": [1.0, 2.0]}, 3.0, NAN),
        (0.9, 0.8, NAN),
    ],
)
def test_a_value_outside_the_range_lies_outside_the_unit_interval(spec, value, outside):
    assert dimension(spec).unit(value) == pytest.approx(outside, nan_ok=True)


# Spaces

PAPER_ADAM = {
    "learning_rate/epsilon": {"log": [1e-1, 1e1]},
    "one_minus_beta1": {"log": [1e-3, 1e0]},
    "one_minus_beta2": {"log": [1e-4, 1e0]},
    "epsilon": {"log": [1e-6, 1e-2]},
}
PAPER_RMSPROP = {
    "learning_rate/sqrt(epsilon)": {"log": [1e-2, 1e0]},
    "one_minus_momentum": {"log": [1e-2, 1e0]},
    "rho": 0.99,
    "epsilon": {"log": [1e-10, 1e-6]},
}
SPACES = [PAPER_ADAM, PAPER_RMSPROP]


def center(table: dict) -> dict:
    space = Space.parse(table)
    return space.hyperparameters([0.5] * len(space.free))


def test_one_minus_x_yields_x():
    assert center({"one_minus_beta1": {"log": [1e-3, 1e-1]}}) == pytest.approx({"beta1": 0.99}, rel=1e-14)
    assert center({"one_minus_beta1": 0.25}) == {"beta1": 0.75}
    assert center({"one_minus_beta1": 1}) == {"beta1": 0.0}


def test_ratios_are_multiplied_by_their_divisor():
    ratio = {"learning_rate/epsilon": {"log": [1e-1, 1e3]}, "epsilon": {"log": [1e-6, 1e-2]}}
    assert center(ratio) == pytest.approx({"learning_rate": 1e1 * 1e-4, "epsilon": 1e-4}, rel=1e-14)
    root = {"learning_rate/sqrt(epsilon)": {"log": [1e-1, 1e3]}, "epsilon": {"log": [1e-6, 1e-2]}}
    assert center(root) == pytest.approx({"learning_rate": 1e1 * 1e-2, "epsilon": 1e-4}, rel=1e-14)


def test_a_ratio_can_be_fixed_and_its_divisor_can_be_one_minus():
    assert center({"learning_rate/epsilon": 2, "epsilon": 0.5}) == {"learning_rate": 1.0, "epsilon": 0.5}
    table = {"learning_rate/beta1": {"uniform": [1.0, 3.0]}, "one_minus_beta1": 0.75}
    assert center(table) == {"learning_rate": 0.5, "beta1": 0.25}


def test_a_ratio_decouples_the_learning_rate_from_epsilon():
    space = Space.parse({"learning_rate/epsilon": {"log": [1e-1, 1e1]}, "epsilon": {"log": [1e-9, 1e9]}})
    epsilon_axis = [axis.key for axis in space.free].index("epsilon")
    for position in (0.0, 0.3, 1.0):
        unit = [0.5, 0.5]
        unit[epsilon_axis] = position
        values = space.hyperparameters(unit)
        assert values["learning_rate"] / values["epsilon"] == pytest.approx(1.0, rel=1e-14)


@pytest.mark.parametrize("table", SPACES, ids=["adam", "rmsprop"])
@given(data=st.data())
def test_unit_cube_to_hyperparameters_and_back(table, data):
    space = Space.parse(table)
    unit = data.draw(st.lists(UNITS, min_size=len(space.free), max_size=len(space.free)))
    np.testing.assert_allclose(space.unit(space.hyperparameters(unit)), unit, atol=1e-11)


@pytest.mark.parametrize("choice", [{}, {"one_minus_beta1": {"choice": [0.1, 0.05]}, "epsilon": 1e-8}])
def test_coordinates_of_many_points_are_those_of_each(choice):
    space = Space.parse(SPACES[0] | choice)
    points = [space.hyperparameters(unit) for unit in np.random.default_rng(0).random((20, len(space.free)))]
    for axis in space:
        assert axis.coordinates(points) == [axis.coordinate(point) for point in points]


@given(tables=st.dictionaries(st.sampled_from("abcdef"), st.one_of(FREE, st.floats(-9, 9))), data=st.data())
def test_hyperparameters_to_unit_cube_and_back(tables, data):
    space = Space.parse(tables)
    unit = data.draw(st.lists(UNITS, min_size=len(space.free), max_size=len(space.free)))
    values = space.hyperparameters(unit)
    assert list(values) == list(space.names) == sorted(tables)
    back = space.hyperparameters(np.clip(space.unit(values), 0.0, 1.0))
    for name, value in values.items():
        near_zero = 1e-9 if isinstance(tables[name], dict) and "uniform" in tables[name] else 0.0
        assert back[name] == pytest.approx(value, rel=1e-9, abs=near_zero)


@pytest.mark.parametrize("table", SPACES, ids=["adam", "rmsprop"])
@given(data=st.data())
def test_hyperparameters_of_a_space_lie_inside_its_ranges(table, data):
    space = Space.parse(table)
    values = space.hyperparameters(data.draw(st.lists(UNITS, min_size=len(space.free), max_size=len(space.free))))
    for axis in space.free:
        low, high = axis.dimension.ends
        assert low * (1 - 1e-11) <= axis.coordinate(values) <= high * (1 + 1e-11), axis.key
    assert all(0 <= values[name] < 1 for name in ("beta1", "beta2", "momentum", "rho") if name in values)


def test_hyperparameters_outside_the_space_lie_outside_the_unit_cube():
    space = Space.parse(PAPER_ADAM)
    values = center(PAPER_ADAM)
    by_key = dict(zip([axis.key for axis in space.free], space.unit(values | {"epsilon": 1.0}), strict=True))
    assert by_key["epsilon"] == pytest.approx(1.5)
    assert by_key["learning_rate/epsilon"] < 0  # the ratio shrank with it
    assert 0 < by_key["one_minus_beta1"] < 1


def test_the_order_of_keys_changes_nothing():
    backwards = dict(reversed(PAPER_ADAM.items()))
    assert Space.parse(backwards) == Space.parse(PAPER_ADAM)
    assert list(Space.parse(backwards).spec()) == list(Space.parse(PAPER_ADAM).spec())


@pytest.mark.parametrize("table", SPACES, ids=["adam", "rmsprop"])
def test_a_space_writes_the_table_it_was_read_from(table):
    assert Space.parse(table).spec() == table


def test_extremes_are_the_ends_of_the_hyperparameter_itself():
    def extremes(table: dict) -> dict[str, tuple]:
        return {axis.name: axis.extremes for axis in Space.parse(table)}

    assert extremes({"one_minus_beta1": {"uniform": [0.25, 1.0]}}) == {"beta1": (0.75, 0.0)}
    assert extremes({"epsilon": {"choice": [1.0, 3.0, 2.0]}}) == {"epsilon": (1.0, 3.0, 2.0)}
    assert extremes({"a/b": {"log": [1.0, 2.0]}, "b": 3.0}) == {"a": (), "b": (3.0,)}


def test_keys_are_parsed_into_hyperparameters():
    axes = Space.parse({"lr/sqrt(eps)": 1.0, "one_minus_beta1": 0.1, "eps": 1.0}).axes
    assert axes == (
        Axis("eps", Fixed(1.0), "eps"),
        Axis("lr/sqrt(eps)", Fixed(1.0), "lr", divisor="eps", root=True),
        Axis("one_minus_beta1", Fixed(0.1), "beta1", one_minus=True),
    )


@pytest.mark.parametrize("unit", [[], [0.5], [0.5] * 5])
def test_a_point_with_another_number_of_coordinates_is_rejected(unit):
    with pytest.raises(SpaceError, match=rf"4 coordinates.*got {len(unit)}"):
        Space.parse(PAPER_ADAM).hyperparameters(unit)


# Parts of a range


def spaces() -> st.SearchStrategy[Space]:
    """Spaces with every kind of dimension and key."""
    fractions = st.one_of(
        specs_of_logs(1e-4, 1.0),
        st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=4, unique=True).map(lambda values: {"choice": values}),
        st.floats(1e-4, 1.0),
    )
    tables = st.fixed_dictionaries(
        {"eps": st.one_of(specs_of_logs(), st.floats(1e-9, 1e9))},
        optional={
            "a": FREE,
            "b": st.one_of(FREE, st.floats(-9, 9)),
            "one_minus_c": fractions,
            "d/eps": st.one_of(specs_of_logs(), fractions),
            "e/sqrt(eps)": st.one_of(specs_of_logs(), fractions),
        },
    )
    return tables.map(Space.parse)


@given(space=spaces(), data=st.data())
def test_a_space_contains_its_own_points(space, data):
    """Including its ends, and points that 1 − x or a ratio has rounded."""
    ends = st.one_of(UNITS, st.sampled_from([0.0, 1.0]))
    values = space.hyperparameters(data.draw(st.lists(ends, min_size=len(space.free), max_size=len(space.free))))
    assert all(axis.holds(values) for axis in space)


@given(space=spaces())
def test_narrowing_to_the_whole_range_changes_nothing(space):
    for axis in space.free:
        assert axis.narrowed(axis.dimension.ends) == axis
        if not isinstance(axis.dimension, Choice):
            assert axis.narrowed((None, None)) == axis
            assert axis.narrowed((-1e30, 1e30)) == axis


@given(spec=RANGES, units=st.tuples(UNITS, UNITS), at=UNITS)
def test_a_narrowed_range_contains_the_values_between_its_ends(spec, units, at):
    whole = parse_axis("x", spec)
    low, high = sorted(whole.dimension.value(unit) for unit in units)
    value = whole.dimension.value(at)
    assume(low < high)
    part = whole.narrowed((low, high))
    assert part.dimension.ends == (low, high)
    assert type(part.dimension) is type(whole.dimension)
    assert part.holds({"x": low})
    assert part.holds({"x": high})
    # Within rounding errors of an end, both answers are right.
    assume(not any(0 < abs(value - end) <= 1e-6 * max(abs(end), high - low) for end in (low, high)))
    assert part.holds({"x": value}) == (low <= value <= high)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8, unique=True), data=st.data())
def test_kept_choices_stay_in_order(values, data):
    whole = parse_axis("x", {"choice": values})
    kept = data.draw(st.lists(st.sampled_from(values), min_size=1, unique=True))
    part = whole.narrowed(kept)
    assert list(part.dimension.values) == [value for value in values if value in kept]
    assert [value for value in values if part.holds({"x": value})] == list(part.dimension.values)


@given(spec=RANGES, units=st.lists(UNITS, min_size=4, max_size=4))
def test_narrowing_twice_equals_narrowing_once(spec, units):
    whole = parse_axis("x", spec)
    first, second = sorted(map(whole.dimension.value, units[:2])), sorted(map(whole.dimension.value, units[2:]))
    both = max(first[0], second[0]), min(first[1], second[1])
    assume(first[0] < first[1] and both[0] < both[1])
    assert whole.narrowed(first).narrowed(second) == whole.narrowed(both)


@pytest.mark.parametrize(
    ("key", "spec", "kept", "inside", "outside"),
    [
        # The bounds are those of the axis: of 1 − x or of the ratio.
        ("one_minus_x", {"log": [1e-3, 1e0]}, (1e-2, 1e-1), {"x": 0.95}, {"x": 0.995}),
        ("one_minus_x", {"choice": [0.1, 0.01, 0.001]}, [0.1, 0.01], {"x": 1 - 0.01}, {"x": 1 - 0.001}),
        ("x/y", {"log": [1e-2, 1e2]}, (1, 10), {"x": 0.5, "y": 0.1}, {"x": 0.05, "y": 0.1}),
        ("x/y", {"choice": [0.1, 0.3, 0.7]}, [0.3], {"x": 0.3 * 0.7, "y": 0.7}, {"x": 0.1 * 0.7, "y": 0.7}),
        ("x/sqrt(y)", {"log": [1e-2, 1e2]}, (1, 10), {"x": 0.5, "y": 0.01}, {"x": 0.05, "y": 0.01}),
        ("x", {"uniform": [0, 1]}, (None, 0.5), {"x": 0.0}, {"x": 0.6}),
        ("x", {"uniform": [0, 1]}, (0.5, None), {"x": 1.0}, {"x": 0.4}),
        ("x", {"uniform": [0, 1]}, (0.5, 9), {"x": 1.0}, {"x": 1.1}),
        ("x", {"integer": [1, 9]}, (2.5, 4.5), {"x": 3}, {"x": 5}),
        ("x", {"choice": ["a", "b"]}, ["b"], {"x": "b"}, {"x": "a"}),
        ("x", {"log": [1e-2, 1]}, (0.1, 1), {"x": 0.1}, {"x": 0.0}),
    ],
    ids=str,
)
def test_what_a_part_of_a_range_holds(key, spec, kept, inside, outside):
    whole, part = parse_axis(key, spec), parse_axis(key, spec).narrowed(kept)
    assert part.holds(inside)
    assert whole.holds(inside)
    assert not part.holds(outside)
    assert (part.key, part.name, part.divisor, part.root, part.one_minus) == (
        (whole.key, whole.name, whole.divisor, whole.root, whole.one_minus)
    )


@pytest.mark.parametrize(("key", "at"), [("x", 0.9), ("one_minus_x", 0.1), ("x/y", 0.3), ("x", "adam")])
def test_a_fixed_value_holds_itself_alone(key, at):
    axis = parse_axis(key, at)
    values = {"x": axis.hyperparameter(at, {"y": 0.7}), "y": 0.7}
    assert axis.holds(values)
    assert not axis.holds(values | {"x": 0.5})


@pytest.mark.parametrize(
    ("spec", "kept", "words"),
    [
        (0.9, (0.1, 1.0), ["fixed", "cannot be narrowed"]),
        ({"log": [1e-3, 1]}, (0.1, 0.1), ["(0.1, 0.1)", "[0.001, 1]", "low < high"]),
        ({"log": [1e-3, 1]}, (0.1, 0.01), ["(0.1, 0.01)", "[0.001, 1]", "low < high"]),
        ({"log": [1e-3, 1]}, (2, 3), ["(2, 3)", "[0.001, 1]", "low < high"]),
        ({"log": [1e-3, 1]}, (-2, 0), ["(-2, 0)", "[0.001, 1]", "low < high"]),
        ({"log": [1e-3, 1]}, (NAN, 0.5), ["(nan, 0.5)", "[0.001, 1]", "low < high"]),
        ({"uniform": [0, 1]}, (None, 0.0), ["(None, 0.0)", "[0, 1]", "low < high"]),
        ({"integer": [1, 5]}, (2.2, 2.8), ["(2.2, 2.8)", "[1, 5]", "low < high"]),
        ({"integer": [1, 5]}, (4, 2), ["(4, 2)", "[1, 5]", "low < high"]),
        ({"integer": [1, 5]}, (NAN, 2), ["(nan, 2)", "[1, 5]", "low < high"]),
        ({"uniform": [0, 1]}, (0.5,), ["(0.5,)", "(low, high)"]),
        ({"uniform": [0, 1]}, 0.5, ["0.5", "(low, high)"]),
        ({"choice": ["a", "b"]}, "a", ["'a'", "list of choices"]),
        ({"uniform": [0, 1]}, [0.1, 0.2, 0.3], ["[0.1, 0.2, 0.3]", "(low, high)"]),
        ({"choice": [1, 2]}, [3], ["3", "expected values from [1, 2]"]),
        ({"choice": ["a", "b"]}, ["a", "c"], ["'c'", "expected values from ['a', 'b']"]),
        ({"choice": [1, 2]}, [], ["at least one of [1, 2]"]),
    ],
    ids=str,
)
def test_an_invalid_part_is_rejected(spec, kept, words):
    with pytest.raises(SpaceError) as error:
        parse_axis("rate", spec).narrowed(kept)
    assert_says(error, ["rate", *words])


# Errors: one line with the key, the value and what was expected


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"log": [1e-1, 1e-3]}, ["[0.1, 0.001]", "reversed", "expected [low, high]"]),
        ({"uniform": [2, 1]}, ["[2, 1]", "reversed", "expected [low, high]"]),
        ({"integer": [3, 1]}, ["[3, 1]", "reversed", "expected [low, high]"]),
        ({"log": [1, 1]}, ["[1, 1]", "empty", "single value"]),
        ({"uniform": [0.5, 0.5]}, ["[0.5, 0.5]", "empty", "single value"]),
        ({"log": [0, 1]}, ["[0, 1]", "positive numbers"]),
        ({"log": [-1, 1]}, ["[-1, 1]", "positive numbers"]),
        ({"log": [-2, -1]}, ["[-2, -1]", "positive numbers"]),
        ({"integer": [1.5, 3]}, ["[1.5, 3]", "two integers"]),
        (NAN, ["nan", "finite number"]),
        (INF, ["inf", "finite number"]),
        (-INF, ["-inf", "finite number"]),
        ({"log": [1e-3, INF]}, ["[0.001, inf]", "two finite numbers"]),
        ({"uniform": [NAN, 1.0]}, ["[nan, 1.0]", "two finite numbers"]),
        ({"choice": [1.0, NAN]}, ["[1.0, nan]", "finite"]),
        ({"choice": [1.0, INF]}, ["[1.0, inf]", "finite"]),
        ({"choice": []}, ["[]", "at least one value"]),
        ({"choice": [1, 2, 1.0]}, ["[1, 2, 1.0]", "each value once"]),
        ({"choice": [[1], [2]]}, ["[[1], [2]]", "numbers, booleans or strings"]),
        ({"choice": "abc"}, ["'abc'", "list"]),
        ({"choice": 3}, ["3", "list"]),
        ({"log": 1e-3}, ["0.001", "list"]),
        ({"log": [1, 2, 3]}, ["[1, 2, 3]", "two finite numbers"]),
        ({"log": ["1e-3", 1]}, ["'1e-3'", "two finite numbers"]),
        ({"log": [False, True]}, ["[False, True]", "two finite numbers"]),
        ({"lgo": [1, 2]}, ["lgo", "log, uniform, integer, choice"]),
        ({"log": [1, 2], "uniform": [1, 2]}, ["log", "uniform", "table such as { log = [1e-3, 1e-1] }"]),
        ({}, ["got {", "value or a table"]),
        ([1e-3, 1e-1], ["[0.001, 0.1]", "table such as { log = [1e-3, 1e-1] }"]),
        (None, ["None", "value or a table"]),
    ],
    ids=str,
)
def test_an_invalid_dimension_is_rejected(spec, words):
    with pytest.raises(SpaceError) as error:
        Space.parse({"learning_rate": spec})
    assert_says(error, ["learning_rate", *words])


@pytest.mark.parametrize(
    "spec", [10**400, {"uniform": [0, 10**400]}, {"choice": [1, 10**400]}], ids=["fixed", "uniform", "choice"]
)
def test_a_number_too_large_for_a_float_is_rejected(spec):
    with pytest.raises(SpaceError, match="learning_rate"):
        Space.parse({"learning_rate": spec})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"one_minus_x": {"log": [1e-3, 1e1]}}, ["one_minus_x", "[0.001, 10.0]", "(0, 1]"]),
        ({"one_minus_x": {"uniform": [0.0, 0.5]}}, ["one_minus_x", "[0.0, 0.5]", "(0, 1]"]),
        ({"one_minus_x": {"choice": [0.5, 2.0]}}, ["one_minus_x", "[0.5, 2.0]", "(0, 1]"]),
        ({"one_minus_x": 0}, ["one_minus_x = 0", "(0, 1]"]),
        ({"one_minus_x": 1.5}, ["one_minus_x = 1.5", "(0, 1]"]),
        ({"one_minus_x": -0.5}, ["one_minus_x = -0.5", "(0, 1]"]),
        ({"one_minus_x": "much"}, ["one_minus_x = 'much'", "expected numbers"]),
        ({"one_minus_x": True}, ["one_minus_x = True", "expected numbers"]),
        ({"one_minus_": 0.1}, ["one_minus_"]),
        ({"one_minus_x": 0.1, "x": 0.9}, ["x is given twice", "'one_minus_x'", "'x'", "remove one of them"]),
        ({"lr/eps": 1.0, "lr": 1.0, "eps": 1.0}, ["lr is given twice", "'lr'", "'lr/eps'", "remove one of them"]),
        (
            {"lr/eps": 1.0, "lr/sqrt(eps)": 1.0, "eps": 1.0},
            ["lr is given twice", "'lr/eps'", "'lr/sqrt(eps)'", "remove one of them"],
        ),
        ({"lr/eps": {"log": [1, 2]}}, ["'lr/eps' needs eps", "range or a value"]),
        ({"lr/sqrt(eps)": {"log": [1, 2]}}, ["'lr/sqrt(eps)' needs eps", "range or a value"]),
        ({"lr/eps": 1.0, "eps": 0.0}, ["'lr/eps'", "eps", "positive"]),
        ({"lr/sqrt(eps)": 1.0, "eps": {"uniform": [-1.0, 1.0]}}, ["'lr/sqrt(eps)'", "eps", "positive"]),
        ({"lr/eps": 1.0, "eps": {"choice": [1.0, 0.0]}}, ["'lr/eps'", "eps", "positive"]),
        ({"lr/eps": 1.0, "one_minus_eps": 1.0}, ["'lr/eps'", "eps", "positive"]),
        ({"lr/eps": 1.0, "eps": "small"}, ["'lr/eps'", "eps", "positive"]),
        ({"lr/eps": "big", "eps": 1.0}, ["lr/eps = 'big'", "expected numbers"]),
        ({"lr/eps": 1.0, "eps/b": 1.0, "b": 1.0}, ["'lr/eps'", "eps", "ratio itself"]),
        ({"lr/lr": 1.0}, ["'lr/lr'", "ratio itself"]),
        ({"one_minus_lr/eps": 1.0, "eps": 1.0}, ["'one_minus_lr/eps'", "cannot be combined with a ratio"]),
        ({"lr//eps": 1.0, "eps": 1.0}, ["'lr//eps'", "x/y or x/sqrt(y)"]),
        ({"lr/log(eps)": 1.0, "eps": 1.0}, ["'lr/log(eps)'", "x/y or x/sqrt(y)"]),
        ({"learning rate": 1.0}, ["'learning rate'", "one_minus_x"]),
        ({"lr\n": 1.0}, ["lr", "one_minus_x"]),
        ({"": 1.0}, ["''", "one_minus_x"]),
    ],
    ids=str,
)
def test_contradictory_and_invalid_keys_are_rejected(table, words):
    with pytest.raises(SpaceError) as error:
        Space.parse(table)
    assert_says(error, words)


def assert_says(error: pytest.ExceptionInfo, words: list[str]) -> None:
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message
