"""The two result files of a job while they grow. They alone say which lines are done."""

from pathlib import Path

from headway.batches.disk import Appender, FileFolder
from headway.batches.lines import read_results
from headway.batches.types import Counts, Results


class ResultLog:
    """Adds results, each line's once, whatever happened before.

    done: numbers of the lines that have a result.
    gave_up: whether some of them were given up, not answered.
    """

    def __init__(self, files: FileFolder, results: Results) -> None:
        """Go on with a job's files, without what a crash left of an unfinished line.

        Raises StorageFullError.
        """
        self.done: set[int] = set()
        self.gave_up = False
        self._output = files.appender(results.output_file_id)
        try:
            self._errors = files.appender(results.error_file_id)
        except BaseException:
            self._output.close()
            raise
        self._completed = self._take_up(self._output, files.path(results.output_file_id))
        self._failed = self._take_up(self._errors, files.path(results.error_file_id))

    @property
    def output_bytes(self) -> int:
        """Size of the output file."""
        return self._output.size

    @property
    def error_bytes(self) -> int:
        """Size of the error file."""
        return self._errors.size

    def counts(self, total: int) -> Counts:
        """Progress."""
        return Counts(total, self._completed, self._failed)

    def add_output(self, number: int, piece: bytes) -> None:
        """Keep a line's answer. Raises StorageFullError; then the line isn't done."""
        self._output.append(piece)
        self.done.add(number)
        self._completed += 1

    def add_error(self, number: int, piece: bytes, given_up: bool = False) -> None:
        """Keep a line's error. Raises StorageFullError; then the line isn't done."""
        self._errors.append(piece)
        self.done.add(number)
        self.gave_up |= given_up
        self._failed += 1

    def sync(self) -> None:
        """See to it that what was added outlives a loss of power. Raises StorageFullError."""
        self._output.sync()
        self._errors.sync()

    def close(self) -> None:
        """Close the files."""
        self._output.close()
        self._errors.close()

    def _take_up(self, file: Appender, path: Path) -> int:
        """Learn what a file holds; how many results these are."""
        before, end = len(self.done), 0
        for result in read_results(path):
            self.done.add(result.number)
            self.gave_up |= result.unanswered
            end = result.end
        file.cut(end)
        return len(self.done) - before
