import numpy as np
import pytest

from bids_gevnet.dwi.model_corrector.volume_prediction import (
    Predictor,
    covariance,
    leave_one_out_matrix,
    mean_of_others_matrix,
)


@pytest.fixture
def directions():
    vectors = np.random.default_rng(0).normal(size=(24, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def fibres(directions, count=400, noise=0.0):
    rng = np.random.default_rng(1)
    axes = rng.normal(size=(count, 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    signal = np.exp(-(0.3 + 1.4 * (directions @ axes.T) ** 2))
    return signal + rng.normal(scale=noise, size=signal.shape)


def test_covariance_is_one_positive_and_antipodal(directions):
    matrix = covariance(directions, 0.1)
    np.testing.assert_allclose(np.diag(matrix), 1)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9
    flipped = covariance(directions * np.where(np.arange(24) % 2, 1, -1)[:, None], 0.1)
    np.testing.assert_allclose(flipped, matrix, atol=1e-12)


def test_closed_form_is_leaving_one_out(directions):
    """Against kriging each volume from the others, one system at a time."""
    noisy = covariance(directions, 0.1) + 0.2 * np.eye(24)
    matrix = leave_one_out_matrix(noisy)
    for k in (0, 7, 23):
        others = np.delete(np.arange(24), k)
        system = np.ones((24, 24))
        system[:23, :23] = noisy[np.ix_(others, others)]
        system[23, 23] = 0
        weights = np.linalg.solve(system, np.append(noisy[others, k], 1))[:23]
        np.testing.assert_allclose(matrix[k, others], weights, atol=1e-10)
        assert matrix[k, k] == 0


def test_rows_sum_to_one(directions):
    for matrix in (Predictor(directions).matrix(fibres(directions)), mean_of_others_matrix(24)):
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-10)
        np.testing.assert_array_equal(np.diag(matrix), 0)


def test_predicts_fibres_much_better_than_their_mean(directions):
    signal = fibres(directions, noise=0.02)
    truth = fibres(directions)
    error = np.abs(Predictor(directions).matrix(signal) @ signal - truth).mean()
    naive = np.abs(mean_of_others_matrix(24) @ signal - truth).mean()
    assert error < 0.4 * naive


def test_noise_alone_is_averaged(directions):
    noise = np.random.default_rng(5).normal(size=(24, 4000))
    predicted = Predictor(directions).matrix(noise) @ noise
    assert predicted.std() < 0.35  # one over the root of 23 is 0.21


def test_caution_brings_the_prediction_nearer_to_the_mean(directions):
    signal = fibres(directions)
    mean = mean_of_others_matrix(24)
    apart = [
        np.abs(Predictor(directions).matrix(signal, caution) - mean).sum()
        for caution in (1.0, 10.0, 1e6)
    ]
    assert apart[0] > apart[1] > apart[2]
    assert apart[2] < 0.02 * apart[0]


def test_few_volumes():
    np.testing.assert_allclose(
        Predictor(np.eye(3)).matrix(np.ones((3, 5))), mean_of_others_matrix(3)
    )
