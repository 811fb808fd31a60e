//! Requests from many clients at once, as fast as they are answered.

use anyhow::{Context, Result, ensure};
use http::Method;
use tokio::task::JoinSet;

use crate::{ApiServer, Connection};

/// Clients with a connection of HTTP/2 each, which they keep: what a handshake costs is not part of their requests.
pub struct Clients(Vec<Connection>);

impl Clients {
    /// # Errors
    /// The server takes no connection.
    pub async fn connect(server: &ApiServer, count: usize) -> Result<Clients> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(Connection::http2(server).await?);
        }
        Ok(Clients(connections))
    }

    /// Spreads the numbers below `count` over the clients and sends one request for each: its method, path, media type
    /// and body.
    ///
    /// # Errors
    /// The first answer with a code other than the one that is expected. The clients are gone then.
    pub async fn send(
        &mut self,
        count: usize,
        expect: u16,
        request: impl Fn(usize) -> (Method, String, &'static str, String) + Clone + Send + 'static,
    ) -> Result<()> {
        let connections = std::mem::take(&mut self.0);
        let (clients, mut tasks) = (connections.len(), JoinSet::new());
        for (client, mut connection) in connections.into_iter().enumerate() {
            let request = request.clone();
            tasks.spawn(async move {
                for number in (client..count).step_by(clients) {
                    let (method, path, media, body) = request(number);
                    let answer = connection.call(method, &path, media, body).await?;
                    ensure!(answer.status() == expect, "{path}: {}", String::from_utf8_lossy(answer.body()));
                }
                Ok(connection)
            });
        }
        while let Some(done) = tasks.join_next().await {
            self.0.push(done.context("a client")??);
        }
        Ok(())
    }
}
