//! Requests from many clients at once, as fast as they are answered.

use anyhow::{Context, Result, ensure};
use http::Method;
use tokio::task::JoinSet;

use crate::{ApiServer, Connection};

/// Spreads the numbers below `count` over connections of HTTP/2 and sends one request for each: its method, path, media
/// type and body.
///
/// # Errors
/// The first answer with a code other than the one that is expected.
pub async fn spread(
    server: &ApiServer,
    clients: usize,
    count: usize,
    expect: u16,
    request: impl Fn(usize) -> (Method, String, &'static str, String) + Clone + Send + 'static,
) -> Result<()> {
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let mut connection = Connection::http2(server).await?;
        let request = request.clone();
        tasks.spawn(async move {
            for number in (client..count).step_by(clients) {
                let (method, path, media, body) = request(number);
                let answer = connection.call(method, &path, media, body).await?;
                ensure!(answer.status() == expect, "{path}: {}", String::from_utf8_lossy(answer.body()));
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.context("a client")??;
    }
    Ok(())
}
