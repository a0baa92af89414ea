"""Names of compared runs: short, and one for each folder."""

from pathlib import Path

import pytest
import xarray as xr

from bertjax import cli
from bertjax.errors import InputError
from bertjax.landscape.store import write_netcdf
from bertjax.report.draw import distinct_names


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["a/x", "a/y"], ["x", "y"]),
        (["a/x", "b/x"], ["a/x", "b/x"]),
        (["a/x", "b/x", "b/y"], ["a/x", "b/x", "y"]),
        (["r/1/a/x", "r/2/a/x"], ["1/a/x", "2/a/x"]),
        (["/x", "/b/x"], ["/x", "b/x"]),
    ],
)
def test_names_tell_folders_apart_with_few_parts(folders, names):
    named = distinct_names([Path(folder) for folder in folders])
    assert [str(folder) for folder in named.values()] == folders
    assert [name.replace("//", "/") for name in named] == names


def test_a_folder_given_twice_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="given twice"):
        distinct_names([Path("x"), Path("y/../x")])


def test_runs_of_one_name_are_both_drawn(tmp_path, capsys):
    for place, loss in (("a", 1.0), ("b", 2.0)):
        dataset = xr.Dataset(
            {"loss": (("split", "alpha"), [[loss, loss + 1.0]])},
            {"split": ["train"], "alpha": [0.0, 1.0]},
            {"kind": "curve", "run": "x"},
        )
        write_netcdf(dataset, tmp_path / place / "x" / "landscape" / "curve.nc")
    cli.landscape(["compare", str(tmp_path / "a" / "x"), str(tmp_path / "b" / "x"), "--out", str(tmp_path / "out")])
    assert "curve.svg" in capsys.readouterr().out
    drawn = (tmp_path / "out" / "curve.svg").read_text()
    assert "a/x" in drawn and "b/x" in drawn
