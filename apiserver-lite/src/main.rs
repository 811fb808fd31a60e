//! The thin binary `apiserver-lite`.

fn main() {}
