"""From three tables an account to three tables in all, under an application that never fails; README.md."""
