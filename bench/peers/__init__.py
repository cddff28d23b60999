"""The other loaders, each doing the same work on the same files. One file a peer and a lane; see ../README.md."""
