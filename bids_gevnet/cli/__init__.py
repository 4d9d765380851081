"""Command lines: parse, check, run.

Read in this order:

1. `parser`: from the command line and `--config-file` to a checked request;
2. `run`: the command `bids_gevnet`, which hands the request on: to `participant` or `group`,
   to `plan` for `--dry-run`, to `reports` where nothing is to be run;
3. `execute`: runs a Nipype workflow, with `workers`, `progress` and `locks`, and tells what
   failed; `environment` makes libraries behave on any machine, `graph` draws the workflow;
4. `phantom` and `demo`: commands of their own.
"""
