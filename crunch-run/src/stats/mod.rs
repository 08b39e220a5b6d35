//! Resource statistics of a running container, in the line format that existing tools parse.
