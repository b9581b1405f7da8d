"""CEL selectors, as Kubernetes evaluates them."""

import pytest
from kaicore.rules.devices.selectors import SelectorFailed, device_data, matches, selector_problem

from tests.given.cluster.devices import DRIVER, gpu, read_slice, slice_document

OWN = f'device.attributes["{DRIVER}"]'

HOLDS = (
    f'device.driver == "{DRIVER}"',
    f'{OWN}.productName.lowerAscii().matches("^.*h100.*$")',
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("80Gi")) == 0',
    f'!device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("80Gi"))',
    'quantity("1500m").add(quantity("500m")) == quantity("2") && quantity("2").sub(1).asInteger() == 1',
    f'{OWN}.driverVersion.isGreaterThan(semver("580.65.6-rc.1")) && {OWN}.driverVersion.major() == 580',
    'semver("v1.2", true) == semver("1.2.0") && !isSemver("1.2")',
    '!("other" in device.attributes) && !has(device.attributes["other"].x)',
    'device.attributes["other"].?x.orValue(1) == 1',
    'device.attributes["resource.kubernetes.io"].numaNode.includes(1)',
    '0 in device.attributes["resource.kubernetes.io"].numaNode',
    f'cel.bind(a, {OWN}, a.index.includes(3) && a.type == "gpu")',
    'sets.intersects(["a", "b"], ["b", "c"]) && [1, 2, 3].sum() == 6',
    '"a-1".find("[0-9]") == "1" && \'.attributes["x"]\'.size() == 16',
    "!device.allowMultipleAllocations",
)

FAILS = {
    'device.attributes["other"].x == 1': 'Key not found in map : "x"',
    'quantity("much") == quantity("1")': "no quantity: 'much'",
    f"{OWN}.index": ": 3",
}


def data() -> dict[str, object]:
    document = slice_document("n1", gpu("gpu-0", numa=[0, 1], attributes={"index": {"int": 3}}))
    return device_data(DRIVER, read_slice(document).devices[0])


@pytest.mark.parametrize("expression", HOLDS)
def test_selector_holds_for_a_gpu(expression: str) -> None:
    assert selector_problem(expression) == ""
    assert matches(expression, data())


@pytest.mark.parametrize("expression", FAILS)
def test_selector_that_cannot_be_told_says_why(expression: str) -> None:
    with pytest.raises(SelectorFailed) as failed:
        matches(expression, data())
    assert FAILS[expression] in str(failed.value)
    assert expression in str(failed.value)


@pytest.mark.parametrize("expression", ["1 +", 'url("https://x").getHost() == "x"'])
def test_expression_that_does_not_compile_is_told_as_such(expression: str) -> None:
    assert selector_problem(expression)
