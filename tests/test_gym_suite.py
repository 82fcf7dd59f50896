"""Environments of a user: seeds as tasks, defaults for missing info, clear errors."""

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax.envs.gym_suite import gym_suite

BARE, RICH, NUMERIC = "test_suites/Guess-v0", "test_suites/RichGuess-v0", "test_suites/Numeric-v0"
UNMADE, UNSET = "test_suites/Unmade-v0", "test_suites/Unset-v0"


class Guess(gymnasium.Env):
    """Say the number of the seed; gives no info keys of its own unless `rich`."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(100)

    def __init__(self, rich: bool = False):
        self._rich = rich

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._number = seed % 10
        extra = {"task": "guess it", "progress": 0.25, "admissible_actions": ["0", "1"]} if self._rich else {}
        return "Which Digit?", extra

    def step(self, action):
        done = action.isdigit()
        return f"you said {action}", 2.0 * (action == str(self._number)), done, False, {}


class Numeric(Guess):
    def reset(self, *, seed=None, options=None):
        return np.zeros(3), {}


class Unmade(Guess):
    def __init__(self):
        raise KeyError("data")


class Unset(Guess):
    def reset(self, *, seed=None, options=None):
        raise OSError("no power")


for _id, _class, _kwargs in (
    (BARE, Guess, {}),
    (RICH, Guess, {"rich": True}),
    (NUMERIC, Numeric, {}),
    (UNMADE, Unmade, {}),
    (UNSET, Unset, {}),
):
    gymnasium.register(id=_id, entry_point=_class, kwargs=_kwargs, disable_env_checker=True)


def test_missing_info_keys_get_defaults():
    env = gym_suite(BARE, 4, 2).make_env()
    observation, info = env.reset(seed=7)
    assert observation == info["task"] == info["anchor"] == "Which Digit?"
    assert (info["won"], info["score"], info["progress"], info["task_type"]) == (False, 0.0, 0.0, "")
    assert "admissible_actions" not in info
    observation, reward, terminated, truncated, info = env.step("eh")
    assert (observation, reward, terminated, truncated, info["won"]) == ("you said eh", 0.0, False, False, False)
    assert info["task"] == "Which Digit?" and info["anchor"] == "you said eh"


@pytest.mark.parametrize("action, won", [("7", True), ("3", False)])
def test_won_is_a_positive_reward_at_termination(action, won):
    env = gym_suite(BARE, 4, 2).make_env()
    env.reset(seed=17)
    _, reward, terminated, _, info = env.step(action)
    assert terminated and info["won"] is won and info["score"] == reward == (2.0 if won else 0.0)


def test_info_of_the_environment_is_kept():
    _, info = gym_suite(RICH, 4, 2).make_env().reset(seed=1)
    assert (info["task"], info["progress"], info["admissible_actions"]) == ("guess it", 0.25, ["0", "1"])


@settings(max_examples=20, deadline=None)
@given(num_train=st.integers(1, 50), num_valid=st.integers(1, 50), seed=st.integers(0, 5))
def test_splits_are_disjoint_and_validation_does_not_depend_on_the_size_of_training(num_train, num_valid, seed):
    suite = gym_suite(BARE, num_train, num_valid, seed)
    train, valid = ({task["seed"] for task in suite.splits[name]} for name in ("train", "valid"))
    assert len(train) == num_train and len(valid) == num_valid and not train & valid
    assert suite.splits["valid"] == gym_suite(BARE, 1, num_valid, seed).splits["valid"]
    assert not (train | valid) & {task["seed"] for task in gym_suite(BARE, 50, 50, seed + 1).splits["train"]}


@pytest.mark.parametrize(
    "env_id, sentence",
    [
        ("no_such_package_here:Env-v0", "cannot be imported"),
        ("rspo_jax_has_no/Such-v0", "not a registered environment"),
        ("not an id", "not a registered environment"),
        (NUMERIC, "only text environments"),
        (UNMADE, "cannot be made .KeyError: 'data'"),
        (UNSET, "cannot be reset .OSError: no power"),
        (":", "cannot be made"),
    ],
)
def test_an_unusable_id_gives_one_clear_sentence(env_id, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        gym_suite(env_id)
    assert env_id in str(caught.value)


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="num_valid = 0"):
        gym_suite(BARE, 10, 0)
