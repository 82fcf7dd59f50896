"""The Gymnasium environment: sources of games, info, the end of an episode."""

import gzip
import pickle

import numpy as np
import pytest
from alfworld_games import KITCHEN, kitchen
from gymnasium.utils.env_checker import check_env
from test_alfworld_pddl import game_text

from rspo_jax.envs.alfworld import ALFWorldEnv, Game
from rspo_jax.envs.alfworld.engine import NOTHING_HAPPENS

WIN = ("go to countertop 1", "take apple 3 from countertop 1", "go to sinkbasin 1", "move apple 3 to sinkbasin 1")


def test_the_environment_passes_gymnasiums_checker():
    check_env(ALFWorldEnv(KITCHEN), skip_render_check=True)


def test_info_has_all_keys_after_reset_and_step():
    env = ALFWorldEnv(kitchen("cool", "apple", "cabinet"), max_steps=5)
    observation, info = env.reset()
    for _ in range(2):
        assert info["task"] == KITCHEN.task and info["task_type"] == "cool"
        assert info["admissible_actions"] is info["admissible_commands"] and "look" in info["admissible_commands"]
        assert info["won"] is False and info["score"] == 0.0 and info["progress"] == 1 / 5
        assert info["anchor"] == observation
        observation, reward, terminated, truncated, info = env.step("look")
        assert (reward, terminated, truncated) == (0.0, False, False)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_game_comes_from_a_path_a_text_or_a_game(tmp_path, suffix):
    text = game_text()
    path = tmp_path / f"game.tw-pddl{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    first = ALFWorldEnv(path).reset()
    for source in (str(path), text, Game.from_text(text)):
        assert ALFWorldEnv(source).reset() == first
        assert ALFWorldEnv().reset(options={"game": source}) == first


def test_an_environment_with_several_games_takes_an_index_or_draws_from_its_seed():
    games = [kitchen("pick", "apple", "desk", task=f"task {i}.") for i in range(20)]
    env = ALFWorldEnv(games)
    assert [env.reset(options={"game": i})[1]["task"] for i in (3, 0, 19)] == ["task 3.", "task 0.", "task 19."]
    drawn = [env.reset(seed=seed)[1]["task"] for seed in range(10)]
    assert drawn == [env.reset(seed=seed)[1]["task"] for seed in range(10)]
    assert len(set(drawn)) > 1


def test_a_win_is_rewarded_and_terminates():
    env = ALFWorldEnv(KITCHEN)
    env.reset()
    results = [env.step(command) for command in WIN]
    assert [result[1] for result in results] == [0.0, 0.0, 0.0, 10.0]
    assert [result[2] for result in results] == [False, False, False, True]
    assert results[-1][4]["score"] == 1.0


def test_without_a_limit_the_game_goes_on_after_a_win():
    env = ALFWorldEnv(KITCHEN)
    env.reset()
    for command in WIN:
        env.step(command)
    assert env.step("look")[2] is True
    observation, reward, terminated, _, info = env.step("take apple 3 from sinkbasin 1")
    assert observation == "You pick up the apple 3 from the sinkbasin 1."
    assert (reward, terminated, info["progress"]) == (0.0, False, 1.0)


def test_with_a_limit_the_last_result_is_repeated_after_the_end():
    env = ALFWorldEnv(KITCHEN, max_steps=10)
    env.reset()
    for command in WIN:
        last = env.step(command)
    assert last[2] and not last[3]
    assert env.step("take apple 3 from sinkbasin 1") == last
    assert env.reset()[1]["won"] is False


def test_impossible_commands_count_as_steps_towards_the_limit():
    env = ALFWorldEnv(KITCHEN, max_steps=3)
    env.reset()
    results = [env.step("dance") for _ in range(5)]
    assert [result[0] for result in results] == [NOTHING_HAPPENS] * 5
    assert [result[3] for result in results] == [False, False, True, True, True]
    assert not any(result[2] for result in results)


def test_a_win_at_the_limit_is_termination_and_not_truncation():
    env = ALFWorldEnv(KITCHEN, max_steps=len(WIN))
    env.reset()
    assert [env.step(command)[2:4] for command in WIN][-1] == (True, False)


def test_domain_randomization_renumbers_from_the_seed_and_keeps_the_order_of_lists():
    env = ALFWorldEnv(KITCHEN, domain_randomization=True)
    texts = set()
    for seed in range(8):
        assert env.reset(seed=seed) == env.reset(seed=seed)
        observation = env.step("go to countertop 1")[0]
        words = observation.partition("you see ")[2].rstrip(".").replace("and ", "").split(", ")
        assert [word.split()[1] for word in words] == ["apple", "knife", "mug", "pen"]
        texts.add(observation)
    assert len(texts) > 1


def test_the_list_of_commands_belongs_to_the_caller():
    env = ALFWorldEnv(KITCHEN)
    _, info = env.reset()
    info["admissible_commands"].clear()
    assert env.step("inventory")[4]["admissible_commands"]


def test_games_and_environments_can_be_pickled():
    env = pickle.loads(pickle.dumps(ALFWorldEnv(KITCHEN)))
    assert env.reset()[0] == ALFWorldEnv(KITCHEN).reset()[0]


def _started():
    env = ALFWorldEnv(KITCHEN)
    env.reset()
    return env


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ALFWorldEnv().reset(), ValueError, "no game to play"),
        (lambda: ALFWorldEnv(max_steps=0), ValueError, "max_steps=0"),
        (lambda: ALFWorldEnv([KITCHEN]).reset(options={"game": 1}), ValueError, r"\"game\"\]=1 is not an index"),
        (lambda: ALFWorldEnv("/nowhere/game.tw-pddl").reset(), FileNotFoundError, "/nowhere/game.tw-pddl"),
        (lambda: ALFWorldEnv(game_text(grammar="x")).reset(), ValueError, "^the key"),
        (lambda: ALFWorldEnv(KITCHEN).step("look"), RuntimeError, "call reset first"),
        (lambda: _started().step(None), ValueError, "an action is a string .* not NoneType"),
        (lambda: _started().reset(options={"goal": 1}), ValueError, r"reset options \['goal'\] are unknown"),
    ],
)
def test_misuse_is_one_clear_error(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_an_error_in_a_file_names_it(tmp_path):
    path = tmp_path / "broken.tw-pddl"
    path.write_text("[]")
    with pytest.raises(ValueError, match=f"{path}: the game has no text"):
        ALFWorldEnv(path).reset()
    whole = gzip.compress(game_text().encode())
    for damaged in (whole[:60], whole[:60] + bytes([255] * 60), np.random.default_rng(0).bytes(64)):
        (tmp_path / "noise.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match="noise.gz.* cannot be read"):
            ALFWorldEnv(tmp_path / "noise.gz").reset()
