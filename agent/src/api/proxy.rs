//! The way to an API server behind a proxy: `proxy-url` of a kubeconfig's cluster, else `HTTPS_PROXY`, `HTTP_PROXY` and
//! `NO_PROXY` of the environment.
//!
//! A proxy is asked for a connection to the server (`CONNECT`, or SOCKS 5), and what is said over it is none of its
//! business. Only requests without TLS are handed to a proxy for HTTP one by one, as it expects them: many connect to
//! nothing but port 443. The server's name is resolved by the proxy.
//!
//! Followed: client-go and Go's `httpproxy`.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use http::{HeaderValue, Uri};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{TlsError, server_name};

/// A head of an answer that is longer is none.
const LONGEST_HEAD: usize = 16 * 1024;

/// A connection, whatever it is made of.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Http,
    Https,
    Socks5,
}

/// Where a proxy is, and who asks it.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    kind: Kind,
    host: String,
    port: u16,
    user: Option<(String, String)>,
}

/// Without user and password.
impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Proxy { kind, host, port, user: _ } = self;
        f.debug_struct("Proxy").field("kind", kind).field("host", host).field("port", port).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Reads `http://`, `https://` or `socks5://` with host, maybe port, user and password.
    ///
    /// # Errors
    /// In client-go's words, without user and password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let kind = match scheme.to_ascii_lowercase().as_str() {
            "http" => Kind::Http,
            "https" => Kind::Https,
            "socks5" => Kind::Socks5,
            other => return Err(format!("unsupported scheme {other:?}, must be http, https, or socks5")),
        };
        let unusable = || format!("could not parse: {}", without_login(url));
        let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, place) = match place.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, place),
        };
        let user = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            Some((name, password)) => {
                Some((unescaped(name).ok_or_else(unusable)?, unescaped(password).ok_or_else(unusable)?))
            }
            None => None,
        };
        let (host, port) = host_and_port(place).ok_or_else(unusable)?;
        let usual = match kind {
            Kind::Http => 80,
            Kind::Https => 443,
            Kind::Socks5 => 1080,
        };
        Ok(Proxy { kind, host: host.to_owned(), port: port.unwrap_or(usual), user })
    }

    /// What the environment says for a server; None to connect without. Machines are asked directly by those that run on them.
    ///
    /// # Errors
    /// A proxy is named that is none, without user and password.
    pub fn of_environment(server: &Uri, env: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let text = |name: &str| env(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let first = |names: [&str; 2]| names.into_iter().find_map(text);
        let secure = server.scheme_str() == Some("https");
        let names = if secure { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
        let Some(url) = first(names) else { return Ok(None) };
        let host = bare(server.host().unwrap_or_default()).to_ascii_lowercase();
        let port = server.port_u16().unwrap_or(if secure { 443 } else { 80 });
        if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
            return Ok(None);
        }
        let without = first(["NO_PROXY", "no_proxy"]).unwrap_or_default();
        if without.split(',').any(|rule| is_meant(rule.trim(), &host, port)) {
            return Ok(None);
        }
        // A name alone is a proxy for HTTP.
        let url = if url.contains("://") { url } else { format!("http://{url}") };
        // Of these two the proxy resolves names in any case.
        let url = url.strip_prefix("socks5h://").map_or(url.clone(), |rest| format!("socks5://{rest}"));
        Proxy::parse(&url).map(Some).map_err(|why| format!("invalid proxy address: {why}"))
    }

    /// Where the proxy is.
    pub fn place(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// A connection to `host` and `port` by way of the proxy. `tls` is for one that speaks TLS itself.
    pub(super) async fn connect(
        &self,
        host: &str,
        port: u16,
        tls: impl FnOnce() -> Result<Arc<ClientConfig>, TlsError>,
    ) -> Result<Box<dyn Stream>, String> {
        let mut stream = self.dial(tls).await?;
        let asked = match self.kind {
            Kind::Http | Kind::Https => self.ask(&mut stream, host, port).await,
            Kind::Socks5 => self.greet(&mut stream, host, port).await,
        };
        asked.map(|()| stream).map_err(|e| self.named(&e))
    }

    /// A connection to the proxy itself. `tls` is for one that speaks TLS.
    pub(super) async fn dial(
        &self,
        tls: impl FnOnce() -> Result<Arc<ClientConfig>, TlsError>,
    ) -> Result<Box<dyn Stream>, String> {
        let named = |error: &dyn std::fmt::Display| self.named(error);
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|e| named(&e))?;
        // Small requests must not wait for the acknowledgement of the one before.
        let _ = tcp.set_nodelay(true);
        if self.kind != Kind::Https {
            return Ok(Box::new(tcp));
        }
        let mut tls = tls().map_err(|e| named(&e))?.as_ref().clone();
        tls.alpn_protocols.clear();
        let name = server_name(&self.host).map_err(|e| named(&e))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
        Ok(Box::new(connector.connect(name, tcp).await.map_err(|e| named(&e))?))
    }

    fn named(&self, error: &dyn std::fmt::Display) -> String {
        format!("proxy {}:{}: {error}", self.host, self.port)
    }

    /// Whether requests without TLS are handed to it, instead of a connection asked for.
    pub(super) fn forwards(&self) -> bool {
        self.kind != Kind::Socks5
    }

    /// `Proxy-Authorization`, where it has a user.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::try_from(self.login()?).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    fn login(&self) -> Option<String> {
        let (name, password) = self.user.as_ref()?;
        let both = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
        Some(format!("Basic {both}"))
    }

    /// `CONNECT`.
    async fn ask(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin), host: &str, port: u16) -> io::Result<()> {
        let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let login = self.login().map_or_else(String::new, |login| format!("Proxy-Authorization: {login}\r\n"));
        let request = format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{login}\r\n");
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut head = Vec::new();
        // Byte by byte: what comes after the head is the server's.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() > LONGEST_HEAD {
                return Err(io::Error::other("its answer has no end"));
            }
            head.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&head);
        let status = line.lines().next().unwrap_or_default().split_once(' ').map_or("", |(_, status)| status.trim());
        if status.starts_with("200") { Ok(()) } else { Err(io::Error::other(status.to_owned())) }
    }

    /// RFC 1928 and 1929.
    async fn greet(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin), host: &str, port: u16) -> io::Result<()> {
        const PLAIN: u8 = 0;
        const PASSWORD: u8 = 2;
        let refused = |why: &str| Err(io::Error::other(why.to_owned()));
        let methods: &[u8] = if self.user.is_some() { &[5, 2, PLAIN, PASSWORD] } else { &[5, 1, PLAIN] };
        stream.write_all(methods).await?;
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).await?;
        match (answer, &self.user) {
            ([5, PLAIN], _) => {}
            ([5, PASSWORD], Some((name, password))) => {
                let mut request = vec![1];
                for text in [name, password] {
                    request.push(length(text)?);
                    request.extend(text.as_bytes());
                }
                stream.write_all(&request).await?;
                stream.read_exact(&mut answer).await?;
                if answer[1] != 0 {
                    return refused("it does not accept the user");
                }
            }
            ([5, _], _) => return refused("it wants another login"),
            _ => return refused("it does not speak SOCKS 5"),
        }
        let mut request = vec![5, 1, 0];
        match host.parse() {
            Ok(IpAddr::V4(address)) => {
                request.push(1);
                request.extend(address.octets());
            }
            Ok(IpAddr::V6(address)) => {
                request.push(4);
                request.extend(address.octets());
            }
            Err(_) => {
                request.extend([3, length(host)?]);
                request.extend(host.as_bytes());
            }
        }
        request.extend(port.to_be_bytes());
        stream.write_all(&request).await?;
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        if head[1] != 0 {
            let words = ["general failure", "not allowed", "network unreachable", "host unreachable"];
            let more = ["connection refused", "TTL expired", "command not supported", "address type not supported"];
            let words: Vec<&str> = words.into_iter().chain(more).collect();
            return refused(words.get(usize::from(head[1]) - 1).copied().unwrap_or("unknown failure"));
        }
        // The proxy's own address, which nobody needs.
        let rest = match head[3] {
            1 => 4,
            4 => 16,
            _ => usize::from(stream.read_u8().await?),
        };
        stream.read_exact(&mut vec![0; rest + 2]).await.map(drop)
    }
}

/// What SOCKS can say of a text.
fn length(text: &str) -> io::Result<u8> {
    u8::try_from(text.len()).map_err(|_| io::Error::other("a name or password is too long for SOCKS 5"))
}

fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// A URL for people, also one that cannot be read: what may be a user and a password is cut.
pub(super) fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(_, rest)| url.split_at(url.len() - rest.len()));
    rest.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, place)| format!("{scheme}xxxxx@{place}"))
}

/// A port that is left empty is the usual one.
fn host_and_port(place: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match place.rsplit_once(':') {
        Some((host, "")) => (host, None),
        Some((host, port)) if !port.contains(']') => (host, Some(port.parse().ok()?)),
        _ => (place, None),
    };
    let host = bare(host);
    (!host.is_empty()).then_some((host, port))
}

/// Whether a rule of `NO_PROXY` is about a server.
fn is_meant(rule: &str, host: &str, port: u16) -> bool {
    if rule == "*" {
        return true;
    }
    let address: Option<IpAddr> = host.parse().ok();
    if let (Some((network, bits)), Some(address)) = (rule.split_once('/'), address) {
        return match (network.parse(), bits.parse()) {
            (Ok(network), Ok(bits)) => within(address, network, bits),
            _ => false,
        };
    }
    // A bare address of six has colons of its own.
    let (name, of_port) = match rule.parse::<IpAddr>() {
        Ok(_) => (rule, None),
        Err(_) => match host_and_port(rule) {
            Some(parts) => parts,
            None => return false,
        },
    };
    if of_port.is_some_and(|of_port| of_port != port) {
        return false;
    }
    let name = name.to_ascii_lowercase();
    if let Ok(rule) = name.parse::<IpAddr>() {
        return address == Some(rule);
    }
    match name.strip_prefix('*').unwrap_or(&name).strip_prefix('.') {
        Some(domain) => host.strip_suffix(domain).is_some_and(|above| above.ends_with('.')),
        None => host == name || host.strip_suffix(name.as_str()).is_some_and(|above| above.ends_with('.')),
    }
}

fn within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            (address.to_bits() ^ network.to_bits()) & mask == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            (address.to_bits() ^ network.to_bits()) & mask == 0
        }
        _ => false,
    }
}

/// `%41` as its letter.
fn unescaped(text: &str) -> Option<String> {
    let digit = |b: Option<u8>| char::from(b?).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let (mut bytes, mut out) = (text.bytes(), Vec::new());
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'%' => digit(bytes.next())? << 4 | digit(bytes.next())?,
            b => b,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn proxies_have_a_scheme_a_place_and_maybe_a_user() {
        let of = |url: &str| Proxy::parse(url).map(|p| (p.kind, p.host, p.port, p.user));
        assert_eq!(of("http://p"), Ok((Kind::Http, "p".into(), 80, None)));
        let user = Some(("a".to_owned(), "b:c".to_owned()));
        assert_eq!(of("HTTPS://a:b%3Ac@p.example:8443/x"), Ok((Kind::Https, "p.example".into(), 8443, user)));
        assert_eq!(of("socks5://[::1]"), Ok((Kind::Socks5, "::1".into(), 1080, None)));
        assert_eq!(of("http://p:"), of("http://p"));
        assert_eq!(of("http://[::1]:/").map(|p| p.1), Ok("::1".into()));
        assert_eq!(of("ftp://p"), Err("unsupported scheme \"ftp\", must be http, https, or socks5".into()));
        assert_eq!(of("p:80"), Err("unsupported scheme \"\", must be http, https, or socks5".into()));
        for bad in ["http://", "http://p:x", "http://a%@p", "http://:80"] {
            assert_eq!(of(bad), Err(format!("could not parse: {}", bad.replace("a%@", "xxxxx@"))));
        }
    }

    /// Both stood in the log of an agent with a proxy that it could not use.
    #[test]
    fn nobody_is_told_the_user_and_the_password() {
        for (url, told) in [
            ("http://p:80/x", "http://p:80/x"),
            ("http://u:pass@p:x", "http://xxxxx@p:x"),
            ("u:p/a#s@s@p:80", "xxxxx@p:80"),
            ("socks4://u:p://ass@p", "socks4://xxxxx@p"),
            ("", ""),
        ] {
            assert_eq!(without_login(url), told);
            assert!(Proxy::parse(url).err().is_none_or(|why| !why.contains("ass")), "{url}");
        }
        let proxy = Proxy::parse("http://user:pass@p").expect("a proxy");
        assert_eq!(format!("{proxy:?}"), "Proxy { kind: Http, host: \"p\", port: 80, .. }");
    }

    #[test]
    fn the_environment_names_a_proxy_and_who_does_without() {
        let of = |server: &'static str, env: &[(&str, &str)]| {
            let get = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            Proxy::of_environment(&Uri::from_static(server), get).map(|proxy| proxy.map(|p| (p.kind, p.host, p.port)))
        };
        let set = ("HTTPS_PROXY", "p:3128");
        let proxy = Ok(Some((Kind::Http, "p".to_owned(), 3128)));
        assert_eq!(of("https://a.b.c:6443", &[set]), proxy);
        assert_eq!(of("https://a.b.c:6443", &[("https_proxy", "http://p:3128")]), proxy);
        assert_eq!(of("http://a.b.c", &[set]), Ok(None), "the other variable is asked");
        assert_eq!(of("https://10.0.0.1", &[("HTTPS_PROXY", "socks5h://p")]).map(|p| p.is_some()), Ok(true));
        assert!(of("https://a.b.c", &[("HTTPS_PROXY", "ftp://p")]).is_err());
        assert_eq!(of("https://a.b.c", &[("HTTPS_PROXY", " http://p:3128\n")]), proxy);
        assert_eq!(of("https://a.b.c", &[("HTTPS_PROXY", " "), ("https_proxy", "p:3128")]), proxy);
        for server in ["https://localhost:1", "https://127.0.0.1:6443", "https://[::1]"] {
            assert_eq!(of(server, &[set]), Ok(None), "{server}");
        }
        for (server, rules, direct) in [
            ("https://a.b.c:6443", "*", true),
            ("https://a.b.c:6443", "x, b.c", true),
            ("https://a.b.c:6443", "a.b.c:6443", true),
            ("https://a.b.c:6443", "a.b.c:443", false),
            ("https://a.b.c:6443", ".b.c", true),
            ("https://a.b.c:6443", "*.B.c", true),
            ("https://a.b.c:6443", ".a.b.c", false),
            ("https://xa.b.c", "a.b.c", false),
            ("https://10.1.2.3:6443", "10.0.0.0/8", true),
            ("https://10.1.2.3:6443", "10.2.0.0/16,10.1.2.3", true),
            ("https://10.1.2.3:6443", "10.2.0.0/16,10.1.2.0/99,x/y", false),
            ("https://[fd00::1]", "fd00::/16", true),
            ("https://[fd00::1]", "fd00::1", true),
            ("https://[fd00::1]", "[fd00::1]:443", true),
            ("https://[fd00::1]", "0.0.0.0/0", false),
        ] {
            let found = of(server, &[set, ("NO_PROXY", rules)]).expect("fine");
            assert_eq!(found.is_none(), direct, "{server} {rules}");
        }
    }

    /// A proxy that expects, answers and then sends back what it gets.
    async fn asked(url: &str, host: &str, exchange: &'static [(&'static [u8], &'static [u8])]) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let port = listener.local_addr().expect("bound").port();
        let proxy = tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.expect("accepts");
            for (expected, answer) in exchange {
                let mut got = vec![0; expected.len()];
                tcp.read_exact(&mut got).await.expect("reads");
                assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(expected));
                tcp.write_all(answer).await.expect("writes");
            }
            let mut word = [0; 4];
            if tcp.read_exact(&mut word).await.is_ok() {
                tcp.write_all(&word).await.expect("writes");
            }
        });
        let url = url.replace("PROXY", &format!("127.0.0.1:{port}"));
        let none = || Err(TlsError::Awaited);
        let connected = Proxy::parse(&url)?.connect(host, 6443, none).await;
        let result = match connected {
            Ok(mut stream) => {
                stream.write_all(b"ping").await.expect("writes");
                let mut word = [0; 4];
                stream.read_exact(&mut word).await.expect("reads");
                assert_eq!(&word, b"ping");
                Ok(())
            }
            Err(why) => Err(why.replace(&port.to_string(), "PORT")),
        };
        proxy.await.expect("as expected");
        result
    }

    #[tokio::test]
    async fn a_proxy_is_asked_for_a_connection() {
        let plain: &[(&[u8], &[u8])] =
            &[(b"CONNECT a.b:6443 HTTP/1.1\r\nHost: a.b:6443\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n")];
        assert_eq!(asked("http://PROXY", "a.b", plain).await, Ok(()));
        let login: &[(&[u8], &[u8])] = &[(
            b"CONNECT [::2]:6443 HTTP/1.1\r\nHost: [::2]:6443\r\nProxy-Authorization: Basic YTpi\r\n\r\n",
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
        )];
        assert_eq!(
            asked("http://a:b@PROXY", "::2", login).await,
            Err("proxy 127.0.0.1:PORT: 407 Proxy Authentication Required".into())
        );
    }

    #[tokio::test]
    async fn a_proxy_of_sockets_is_asked_for_a_connection() {
        let plain: &[(&[u8], &[u8])] = &[
            (b"\x05\x01\x00", b"\x05\x00"),
            (b"\x05\x01\x00\x03\x03a.b\x19\x2b", b"\x05\x00\x00\x01\x01\x02\x03\x04\x00\x05"),
        ];
        assert_eq!(asked("socks5://PROXY", "a.b", plain).await, Ok(()));
        let login: &[(&[u8], &[u8])] = &[
            (b"\x05\x02\x00\x02", b"\x05\x02"),
            (b"\x01\x01a\x01b", b"\x01\x00"),
            (b"\x05\x01\x00\x01\x0a\x00\x00\x01\x19\x2b", b"\x05\x05\x00\x01"),
        ];
        assert_eq!(
            asked("socks5://a:b@PROXY", "10.0.0.1", login).await,
            Err("proxy 127.0.0.1:PORT: connection refused".into())
        );
    }
}
