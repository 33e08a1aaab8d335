module ringfile

go 1.19
