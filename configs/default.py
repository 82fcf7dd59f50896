"""The whole configuration tree, one comment per key. Every default of the project lives here and nowhere else.

Values marked [P] are the RSPO paper's (arXiv 2607.04713), [V] verl-agent's, [D] decisions where the paper is silent.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The tree with the paper's settings; environment and algorithm files and presets change it."""
    return ConfigDict(
        dict(
            seed=0,  # one seed for everything: tasks, sampling, minibatches [P: 0, 200, 400]
            env=env(),
            context=context(),
            model=model(),
            decoding=decoding(),
            batch=dict(
                tasks=16,  # distinct tasks per update of the agent [P]
                group_size=8,  # episodes per task (N) [P]; PPO uses 1
            ),
            algo=algo(),
            loss=loss(),
            optim=optim(),
            critic=critic(),
            reward="outcome",  # what the target is trained on: outcome | dense | mixed (the last two for ablations)
            reward_mix=1.0,  # mixed: outcome reward + reward_mix * dense reward
            process_reward=process_reward(),
            collect=collect(),
            reward_model=reward_model(),
            rspo=rspo(),
            train=train(),
            eval=evaluation(),
            sft=sft(),
            mesh=mesh(),
        )
    )


def env() -> dict:
    return dict(
        name="webshop",  # webshop | alfworld; ignored when env.id is set
        id="",  # any Gymnasium text environment instead, e.g. "their_package:TheirEnv-v0" (tasks are seeds)
        min_options=0,  # generated WebShop goals: least number of options to choose (2 is much harder)
        data="",  # directory of official data; "" = generated tasks
        seed=0,  # seed of generated tasks, of sampled prices and of the task splits
        max_turns=15,  # turns after which an episode is truncated [V: 15 WebShop, 50 ALFWorld]
        workers=0,  # environment processes; 0 = in this process (best for the built-in simulators)
        timeout=60.0,  # seconds after which a silent environment worker is replaced
        size="tiny",  # generated ALFWorld rooms: tiny | official
        task_types=(),  # ALFWorld: kinds of task to play, of pick, look, clean, heat, cool, pick2; () = all
        num_train=4096,  # generated or user tasks for training (ALFWorld, Gymnasium)
        num_valid=512,  # generated or user tasks per validation split (ALFWorld, Gymnasium)
        human_goals=True,  # WebShop files: human-written goals (False = synthetic ones)
        num_products=0,  # WebShop files: number of products to load, 0 = all
        nouns="",  # WebShop files: JSON lines of noun lists for titles; "spacy" = spaCy; "" = a rule without it
        observation_mode="text",  # WebShop: text | text_rich
        show_attributes=False,  # WebShop: attributes page
        compat="official",  # WebShop files: official | fixed (every goal can be won); generated tasks are always fixed
    )


def context() -> dict:
    return dict(
        mode="append",  # append (one row per episode, cache kept between turns) | window (one row per turn) [V, P]
        format="plain",  # plain (the response is the action) | verl (<think> and <action> tags) [V]
        history=2,  # window: earlier turns shown [V]
        max_tokens=1024,  # append: longest row; an episode that does not fit is truncated
        max_prompt=4096,  # window: longest prompt; a longer one is cut at the left [V]
        system="",  # system prompt; "" = none beyond the chat template's own
    )


def model() -> dict:
    return dict(
        path="",  # Hugging Face directory; "" = a shipped tiny agent for the environment
        base="easy",  # shipped agent: easy (about 20 % success) | sparse (well under 1 %)
        dtype="float32",  # float32 | bfloat16 (training keeps float32 parameters); norms, softmax, log-probs: float32
        remat=False,  # recompute activations in the backward pass: less memory, a little slower
        lora=dict(
            rank=0,  # 0 trains all parameters; > 0 trains adapters of this rank and freezes the base
            alpha=16.0,  # LoRA scale is alpha / rank
            targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),  # adapted kernels
        ),
    )


def decoding() -> dict:
    return dict(
        constrain=False,  # only admissible actions (free text where none are listed); this is then the policy
        temperature=1.0,  # training temperature [V]
        eval_temperature=0.4,  # evaluation temperature, 0 = greedy [V]
        max_response=512,  # tokens per response [V]
        max_free=16,  # constrain: tokens of free text (a search query) in one action
        rows=0,  # episodes sampled together; 0 = batch.tasks * batch.group_size
    )


def algo() -> dict:
    return dict(
        name="gigpo",  # a name in rspo_jax.algos.ADVANTAGES
        norm="std",  # group statistics: std | none [V: std ALFWorld, none WebShop]
        gamma=0.95,  # discount of GiGPO's step level [V]; PPO sets 1.0
        omega=1.0,  # weight of GiGPO's step level [V]
        similarity=1.0,  # GiGPO anchor groups: 1.0 = identical observations, below = difflib ratio at least this
        lam=1.0,  # GAE lambda
        gae_level="turn",  # PPO: turn | token [V]
        invalid_penalty=0.1,  # subtracted for a response that breaks the format [V]
        dynamic_sampling=0,  # DAPO: rounds in which groups without reward variance are replaced, 0 = off
    )


def loss() -> dict:
    return dict(
        eps_low=0.2,  # clip below [P]
        eps_high=0.2,  # clip above [P]; DAPO 0.28
        dual_clip=3.0,  # bound of the objective for negative advantages; 0 = off [V]
        kl_coef=0.01,  # beta: weight of KL(pi || pi_ref) [V]; 0 = no reference model
        kl_kind="k3",  # k1 | k2 | k3 [V]
        kl_in="loss",  # loss | reward
        kl_target=0.0,  # adaptive KL: coefficient steered towards this KL per token; 0 = constant coefficient
        kl_horizon=10000,  # adaptive KL: episodes in which an error of 20 % moves the coefficient by 20 %
        entropy_coef=0.0,  # weight of the entropy bonus
        aggregation="token_mean",  # token_mean | turn_mean | sequence_mean | constant (Dr.GRPO), see token_weights
        ratio="token",  # token | sequence (GSPO)
        old_logp="sampler",  # pi_old on on-policy tokens: the sampler's log-probs | trainer (recomputed; for bfloat16)
    )


def optim() -> dict:
    return dict(
        lr=1e-6,  # AdamW learning rate [V]
        warmup=0,  # linear warm-up, in optimizer updates
        lr_schedule="constant",  # constant | linear | cosine (decays to 0 at the last step) [V: constant]
        weight_decay=0.01,  # [V]
        b1=0.9,  # AdamW first-moment decay
        b2=0.999,  # AdamW second-moment decay
        clip_norm=1.0,  # global gradient norm [V]
        epochs=1,  # passes over a batch [V]
        minibatch_rows=0,  # token rows per optimizer update, 0 = whole batch [V: 64 WebShop, 256 ALFWorld turn rows]
        micro_rows=0,  # rows per gradient accumulation step, 0 = all rows of a minibatch at once
    )


def critic() -> dict:
    return dict(
        lr=1e-5,  # learning rate of the value network [V]
        value_clip=0.5,  # clip of the value change in the value loss [V]
        warmup=0,  # updates of the target agent during which only its critic learns
        epochs=1,  # passes of the critic over a batch
        shared=False,  # value head on the policy's own (stopped) features instead of its own copy of the backbone
    )


def process_reward() -> dict:
    return dict(
        source="env",  # env (simulator progress) | click (hackable: pays each effective action) | model (learned)
        path="",  # directory of the learned process reward model
        scale=10.0,  # dense return of a perfect episode: equal to the outcome scale [D]
        noise_std=0.0,  # Gaussian noise on each turn's dense reward: the noise ablation [P: 0, 0.1, 0.3]
        refit=0,  # model: passes over buffer D with which the head is refitted after every loop, 0 = frozen
    )


def collect() -> dict:
    """Episodes that a process reward model is fitted on (--mode=collect)."""
    return dict(
        episodes=2000,  # episodes, each on the next task of a seeded order
        split="train",  # split whose tasks are played
        temperature=1.0,  # sampling temperature, 0 = greedy
        outcome="success",  # what the rewards of an episode are to sum to: success (0 or 1) | score (graded, in [0, 1])
    )


def reward_model() -> dict:
    """The process reward model (--mode=reward_model); its optimizer is config.optim's but for the learning rate."""
    return dict(
        backbone="frozen",  # the language model under the head, a copy of the configured agent: frozen [P] | trained
        data="",  # directory of collected episodes; "" = WORKDIR/collected
        epochs=50,  # longest fit, in passes over the training episodes
        patience=5,  # epochs without a smaller held-out error after which the fit stops
        lr=1e-3,  # learning rate; about 1e-5 for the trained backbone of a large model
        batch=64,  # episodes per optimizer update
        rows=64,  # token rows on the device at once, also when scoring
        inner=128,  # inner width of the head
        held_out=0.2,  # share of the tasks that are only used to judge the fit
    )


def rspo() -> dict:
    return dict(
        enabled=True,  # False = the base algorithm
        alpha=0.125,  # share of stored trajectories in the target's batch and objective [P]
        alpha_schedule="constant",  # constant | linear | cosine (decays to 0 at the last step)
        k=3,  # updates of the guide, then of the target, in one loop [P]
        collect_tasks=28,  # tasks the guide collects for buffer D [P]
        collect="fresh",  # fresh (a collection rollout) | reuse (the guide's last training rollouts)
        source="guide",  # who fills D: guide | history (the target's own past: RSPO_H) | self_imitation (after SPEAR)
        history=0,  # history, self_imitation: the target's last so many rollouts fill D, 0 = k
        guide_reward="dense",  # what the guide is trained on: dense | outcome (RSPO_O) | mixed
        sampling="reward",  # what is drawn from D first: reward | variance | random
        successes_only=True,  # only successful trajectories leave D [D]
        backfill="on_policy",  # missing draws become extra on-policy tasks: on_policy | none [D]
        guide_reset="always",  # the guide restarts from the target: always [P] | until_success | never
        min_successes=8,  # until_success: successes that end a guide's stay
        guide_max_loops=5,  # until_success: longest stay in loops
        guide_lr_scale=1.0,  # guide's learning rate over the target's; 3 was more reliable from very sparse starts
        off_clip="generalized",  # clip off-policy: generalized (shifted centre) [P] | standard | decoupled | none
        off_ratio="behaviour",  # off-policy ratio pi/pi_B [P] | old (pi/pi_old)
        off_ratio_cap=0.0,  # largest clip centre, 0 = none
        guide_data="sampled",  # sampled [P] | recycled (the guide trains on the target's last episodes)
    )


def train() -> dict:
    return dict(
        steps=150,  # updates of the target agent [P]
        eval_every=10,  # target updates between evaluations, 0 = only first and last
        checkpoint_every=10,  # rollout-and-update ticks (of guide or target) between checkpoints
        transcripts=4,  # sampled episodes written after each evaluation
        progress=True,  # live progress in the terminal
    )


def evaluation() -> dict:
    return dict(
        episodes=256,  # fixed tasks per split, or all of a smaller split
        repeats=1,  # episodes per task
        splits=("valid",),  # panels, each evaluated on the same tasks every time
        final_splits=(),  # further panels at the first and last evaluation only
    )


def sft() -> dict:
    return dict(
        episodes=4000,  # demonstrations
        skill=0.5,  # probability that the demonstrator decides right
        steps=600,  # optimizer updates
        rows=64,  # episodes per update
        lr=2e-3,  # peak learning rate, cosine to 0
        vocab_size=1024,  # tokenizer built from the demonstrations
        width=64,  # model width
        layers=2,  # transformer layers
        heads=2,  # attention heads (and key-value heads)
        ffn=192,  # feed-forward width
        from_scratch=True,  # False imitates with the model at model.path instead
    )


def mesh() -> dict:
    return dict(
        data=-1,  # devices over which rows are split; -1 = all that remain
        fsdp=1,  # devices over which parameters and optimizer are split (rows too)
        tensor=1,  # devices over which each layer's kernels are split
    )
