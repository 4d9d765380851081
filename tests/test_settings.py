import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bids_gevnet.errors import InputError
from bids_gevnet.settings import (
    ExecutionSettings,
    LearningSettings,
    PreprocessingSettings,
    SelectionSettings,
    Settings,
    read_toml,
    to_toml,
)

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)
paths = st.none() | words.filter(lambda word: "\0" not in word).map(Path)
settings = st.builds(
    Settings,
    selection=st.builds(
        SelectionSettings,
        participant_label=st.lists(words).map(tuple),
        exclude_participant_label=st.lists(words).map(tuple),
        participants_file=paths,
        bids_filter_file=paths,
    ),
    execution=st.builds(
        ExecutionSettings, nprocs=st.integers(0, 64), write_graph=st.booleans(), work_dir=paths
    ),
    preprocessing=st.builds(
        PreprocessingSettings,
        shell=st.none()
        | st.just("all")
        | st.lists(st.floats(60, 5000), min_size=1, unique=True).map(tuple),
        output_resolution=st.floats(0.5, 20),
        nside=st.sampled_from([1, 2, 4, 8]),
    ),
    learning=st.builds(
        LearningSettings,
        target=st.none() | words,
        folds=st.integers(2, 20),
        reference_site=st.none() | words,
        leave_site_out=st.none() | st.booleans(),
        classes=st.sampled_from(["pairs", "all"]),
        batch_size=st.integers(1, 64),
        strides=st.tuples(*[st.integers(1, 8)] * 4),
        learning_rate=st.floats(1e-9, 1),
        voxels_per_step=st.just("all") | st.floats(1e-3, 1e6),
    ),
)


@given(settings)
def test_toml_round_trip(original):
    tables = tomllib.loads(to_toml(original))
    assert Settings.from_tables(tables, source="a test") == original


def test_names_are_unique_across_sections():
    names = [name for table in Settings.names().values() for name in table]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[preprocesing]\n", "did you mean 'preprocessing'"),
        ("[preprocessing]\nnsid = 4\n", "did you mean 'nside'"),
        ("[preprocessing]\nnside = '4'\n", "a whole number for nside"),
        ("[preprocessing]\nnside = true\n", "a whole number for nside"),
        ("[preprocessing]\nnside = 3\n", "a power of two"),
        ("[preprocessing]\noutput_resolution = nan\n", "a finite number"),
        ("[preprocessing]\noutput_resolution = 0\n", "between 0.5 and 20"),
        ("[preprocessing]\nshell = 20\n", "above the b0 threshold"),
        ("[preprocessing]\nshell = true\n", "a list of numbers"),
        ("[preprocessing]\nb0_threshold = 900\n", "between 0 and 200"),
        ("[preprocessing]\ncrop_margin = -1\n", "between 0 and 50"),
        ("[preprocessing]\nfallback_total_readout_time = 50\n", "between 0 and 1"),
        ("[preprocessing]\ncorrection = 'spm'\n", "one of auto, eddy, model, ants, none"),
        ("[selection]\nparticipant_label = '01'\n", "a list of words"),
        ("[selection]\nexclude_participant_label = '01'\n", "a list of words"),
        ("[selection]\nskip_bids_validation = 1\n", "true or false"),
        ("[execution]\nnprocs = -1\n", "from 0 up"),
        ("[execution]\nrandom_seed = 4294967296\n", "below 2^32"),
        ("[learning]\nfolds = 1\n", "at least 2"),
        ("[learning]\nepochs = 0\n", "at least 1"),
        ("[learning]\nsamples_per_class = 0\n", "at least 1"),
        ("[learning]\nbatch_size = 0\n", "from 1 to 4096"),
        ("[learning]\nvoxels_per_step = 0\n", "a fraction of the brain up to 1"),
        ("[learning]\nvoxels_per_step = 'some'\n", "a number or one of all"),
        ("[learning]\nstrides = [2, 1]\n", "4 numbers from 1 to 8"),
        ("[learning]\nstrides = [2, 1, 0, 1]\n", "4 numbers from 1 to 8"),
        ("[learning]\nstrides = [2, 1, 1.5, 1]\n", "a whole number for strides"),
        ("[learning]\nstrides = 2\n", "a list of whole numbers"),
        ("[learning]\nlearning_rate = 0\n", "above 0 and at most 1"),
        ("[learning]\nlearning_rate = 2.0\n", "above 0 and at most 1"),
        ("[learning]\nclasses = 'triples'\n", "one of pairs, all"),
        ("[learning]\nleave_site_out = 'no'\n", "true or false"),
        (
            "[learning]\nharmonisation = 'none'\nreference_site = 'A'\n",
            "--harmonisation rish for --reference-site",
        ),
        ("[learning]\ndevices = 'cpu:0'\n", "cpu:N"),
        ("[learning]\ndevices = 'gpu'\n", "cpu:N"),
        ("learning = 3\n", "a table [learning]"),
    ],
)
def test_bad_settings_get_a_sentence(text, message):
    with pytest.raises(InputError) as caught:
        Settings.from_tables(tomllib.loads(text), source="settings.toml")
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", [None, b"[", b"\xff"])
def test_unreadable_file_is_named(tmp_path, content):
    path = tmp_path / "settings.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"settings\.toml"):
        read_toml(path)


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        Settings().preprocessing.nside = 8


def test_zero_means_what_the_machine_has():
    execution = ExecutionSettings()
    assert execution.processes >= 1
    assert 1 <= execution.threads <= 8
    assert ExecutionSettings(nprocs=3, omp_nthreads=2).threads == 2
