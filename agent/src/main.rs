//! The thin binary `node-agent`.

fn main() {}
