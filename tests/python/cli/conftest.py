import pytest
from posenc.cli import main


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs a command line in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:  # argparse
            code = stop.code
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    return call
