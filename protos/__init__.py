"""The schemas, and the stubs that ``scripts/protos`` makes of them."""
