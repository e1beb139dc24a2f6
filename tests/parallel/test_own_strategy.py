"""A strategy of your own passes the suite that Treadle's own passes: alone and on two processes, the same run."""

import pytest
import torch

from tests.parallel.conftest import Launch
from tests.parallel.launching import assert_same_run
from tests.parallel.programs.own_strategy import program
from treadle import Trainer
from treadle.errors import ConfigError


@pytest.mark.slow
@pytest.mark.parametrize("scenario", program.scenarios)
def test_a_run_shared_by_a_strategy_of_ones_own_is_that_of_one_process(launched: Launch, scenario: str) -> None:
    reference = launched("equality", processes=1).rank_zero(scenario)
    reports = launched("own_strategy", processes=2)(scenario)
    for report in reports:
        assert report["strategy"] == "GatheredMeans"
        assert report["reduced"] >= report["steps"]
        assert torch.equal(report["weights"], reports[0]["weights"])
        assert_same_run(report, reference)


def test_what_makes_no_strategy_is_refused() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"made 2; return a treadle\.parallel\.Strategy"):
        Trainer(model, None, None, parallel=lambda processes: 2)  # type: ignore[arg-type, return-value]
