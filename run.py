"""Command line: run.py --config=FILE[:PRESET] [--workdir=DIR] [--mode=MODE] [--config.KEY=VALUE ...]."""

from absl import app, flags
from ml_collections import config_flags

from rspo_jax import configuration, main

config_flags.DEFINE_config_file("config", None, "Configuration file, with an optional :preset.", lock_config=True)
flags.DEFINE_string("workdir", None, "Directory of the run; the same one again resumes. Default: runs/CONFIG-PRESET.")
flags.DEFINE_enum("mode", "train", main.MODES, "What to do.")
flags.mark_flag_as_required("config")

if __name__ == "__main__":
    app.run(main.main, flags_parser=configuration.parse_flags)
