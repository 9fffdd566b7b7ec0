"""What a judge may say of a program."""

RIGHT, WRONG = "right", "wrong"
