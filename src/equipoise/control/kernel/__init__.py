"""The compiled allocator. Edits here compile it anew; edits beside it do not."""
