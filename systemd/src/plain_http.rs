//! What a port that speaks TLS says to somebody who does not: the words of Go's HTTP server.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The whole answer; the connection is closed after it.
const ANSWER: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// Waits for the first bytes of a new connection. One that begins with an HTTP request is answered and done with.
///
/// # Errors
/// The connection is of no use: it failed, or it was answered.
pub async fn refuse(tcp: &mut TcpStream) -> Result<()> {
    let mut head = [0; 5];
    let length = tcp.peek(&mut head).await?;
    if !begins(&head[..length]) {
        return Ok(());
    }
    tcp.write_all(ANSWER).await?;
    tcp.shutdown().await?;
    // What is not read when a connection closes takes the answer with it.
    while tcp.read(&mut [0; 1024]).await? > 0 {}
    Err(Error::new(ErrorKind::InvalidData, "client sent an HTTP request to an HTTPS server"))
}

fn begins(head: &[u8]) -> bool {
    let begins: [&[u8]; 7] = [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"PATCH", b"DELET", b"OPTIO"];
    begins.iter().any(|begin| head.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn said(sent: &[u8]) -> (bool, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
        let (mut tcp, _) = listener.accept().await.expect("accepts");
        client.write_all(sent).await.expect("sends");
        client.shutdown().await.expect("sends");
        let refused = refuse(&mut tcp).await.is_err();
        drop(tcp);
        let mut text = String::new();
        // Where nothing is answered, what was sent is lost with the connection.
        let _ = client.read_to_string(&mut text).await;
        (refused, text)
    }

    #[tokio::test]
    async fn requests_are_told_from_handshakes() {
        let (refused, text) = said(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(refused && text.ends_with("\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"), "{text}");
        assert_eq!(said(b"\x16\x03\x01\x02\x00").await, (false, String::new()));
        assert_eq!(said(b"").await, (false, String::new()));
    }
}
