"""The tests of Headgate, and what they share.

No file but `conftest.py` lies here: a test lies in the folder of its kind, and code that several tests share lies in
`support`. The folders of tests are no packages: a test module is imported by its file's name, which is unique.
"""
