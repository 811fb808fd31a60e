//! `never-ready SOCKET`: the runtime of [`tests::runtime`] as a program, for scripts that start agents themselves.

use anyhow::{Context, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let socket = std::env::args().nth(1).context("usage: never-ready SOCKET")?;
    tests::runtime::serve(socket.as_ref()).await
}
