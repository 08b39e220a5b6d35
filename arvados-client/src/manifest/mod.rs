//! Manifests: the text that says which bytes of which blocks make up the files of a collection.
