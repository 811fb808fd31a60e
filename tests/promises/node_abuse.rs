//! Clients and plugins that mean no good, or cannot do better, cost the node neither its pods nor its memory.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tests::node::{IMAGE, Node};
use tests::process::resident_mib;
use tests::{ApiServer, free_port};

/// As long as a pod may take on a busy machine, whoever else wants something of the agent.
const PACE: Duration = Duration::from_secs(20);
const CLIENTS: usize = 1000;

/// Starts a pod and sees it run and go.
fn pace(server: &ApiServer, node: &Node, name: &str, during: &str) -> Result<()> {
    let begun = Instant::now();
    server.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node.name, "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": IMAGE, "command": ["sleep", "100000"]}]}}))?;
    node.wait_until(&format!("a pod runs {during}"), PACE, || {
        Ok(server.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.phase}"])? == "Running")
    })?;
    let took = begun.elapsed();
    server.kubectl(&["delete", "pod", name, "--timeout=30s"])?;
    println!("{during}: {:.1} s to Running, {:.1} MiB", took.as_secs_f64(), resident_mib(node.agent_pid())?);
    Ok(())
}

fn open_files(node: &Node) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", node.agent_pid()))?.count())
}

/// What the plain port answers to what was sent; empty where it only hangs up.
fn said(port: u16, text: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    // It may hang up before it has read all.
    let _ = stream.write_all(text);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned())
}

fn slow_clients(server: &ApiServer, node: &Node, plain: u16) -> Result<()> {
    let before = (open_files(node)?, resident_mib(node.agent_pid())?);
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let port = if number % 2 == 0 { node.port } else { plain };
        let mut client = TcpStream::connect(("127.0.0.1", port))?;
        // Silent ones, ones that begin a handshake, and ones that never come to the end of a head.
        match number % 4 {
            0 => {}
            2 => client.write_all(&[22, 3, 1, 2, 0, 1])?,
            _ => client.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")?,
        }
        clients.push(client);
    }
    node.wait_until("all are connected", PACE, || Ok(open_files(node)? >= before.0 + CLIENTS * 9 / 10))?;
    // One byte each now and then, as slow ones do.
    for client in clients.iter_mut().skip(1).step_by(2) {
        client.write_all(b"a")?;
    }
    let held = resident_mib(node.agent_pid())? - before.1;
    ensure!(held < 40.0, "{CLIENTS} slow clients cost {held:.1} MiB");
    pace(server, node, "among-slow", "among slow clients")?;
    let begun = Instant::now();
    let answer = said(plain, b"GET /pods HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    ensure!(answer == "HTTP/1.1 200 OK" && begun.elapsed() < Duration::from_secs(5), "{answer} {:?}", begun.elapsed());
    drop(clients);
    node.wait_until("they are forgotten", PACE, || Ok(open_files(node)? <= before.0 + 20))
}

fn giant_heads(node: &Node, plain: u16) -> Result<()> {
    let before = resident_mib(node.agent_pid())?;
    let long = [b"GET /pods HTTP/1.1\r\nHost: x\r\nX-Long: ", &vec![b'a'; 2 << 20][..], b"\r\n\r\n"].concat();
    let many = format!("GET /pods HTTP/1.1\r\nHost: x\r\n{}\r\n", "X-Many: a\r\n".repeat(5000));
    let path = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(1 << 20));
    for (what, text) in
        [("a long header", &long[..]), ("many headers", many.as_bytes()), ("a long path", path.as_bytes())]
    {
        for _ in 0..20 {
            let answer = said(plain, text)?;
            let refused = ["HTTP/1.1 431", "HTTP/1.1 414", "HTTP/1.1 400"].iter().any(|code| answer.starts_with(code));
            ensure!(refused || answer.is_empty(), "{what}: {answer}");
        }
    }
    let grown = resident_mib(node.agent_pid())? - before;
    ensure!(grown < 20.0, "giant heads cost {grown:.1} MiB");
    Ok(())
}

/// What never ends is passed on as fast as it is taken, and not kept.
fn endless_input(server: &ApiServer, node: &Node) -> Result<()> {
    let overrides = json!({"spec": {"nodeName": node.name, "terminationGracePeriodSeconds": 0}}).to_string();
    let run = ["run", "mouth", "--image", IMAGE, "--image-pull-policy=Never", "--overrides", &overrides];
    server.kubectl(&[&run[..], &["--", "sleep", "100000"]].concat())?;
    server.kubectl(&["wait", "--for=condition=Ready", "pod/mouth", "--timeout=60s"])?;
    let before = resident_mib(node.agent_pid())?;
    let mut feeds = Vec::new();
    // One that swallows everything and one that takes nothing.
    for command in ["cat >/dev/null", "sleep 1000"] {
        let mut feed = Command::new("kubectl");
        feed.arg("--kubeconfig").arg(server.kubeconfig()).args(["exec", "-i", "mouth", "--", "sh", "-c", command]);
        feeds.push(feed.stdin(std::fs::File::open("/dev/zero")?).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    }
    let outcome = pace(server, node, "beside-exec", "beside endless input");
    let grown = resident_mib(node.agent_pid())? - before;
    for mut feed in feeds {
        feed.kill()?;
        feed.wait()?;
    }
    outcome?;
    ensure!(grown < 32.0, "endless input costs {grown:.1} MiB");
    server.kubectl(&["delete", "pod", "mouth", "--timeout=30s"])?;
    Ok(())
}

async fn dial(socket: &Path) -> Result<SendRequest<Full<Bytes>>> {
    let stream = tokio::net::UnixStream::connect(socket).await.with_context(|| socket.display().to_string())?;
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Calls a method; the status and its text, wherever in the answer they are.
async fn call(
    sender: &mut SendRequest<Full<Bytes>>,
    method: &str,
    message: &[u8],
    mask: Option<&str>,
) -> Result<(String, String)> {
    let mut body = BytesMut::from(&[0][..]);
    body.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
    body.extend_from_slice(message);
    let mut request = Request::post(format!("http://node/{method}")).header("content-type", "application/grpc");
    if let Some(mask) = mask {
        request = request.header("x-field-mask", HeaderValue::from_str(mask)?);
    }
    sender.ready().await?;
    let (head, body) = sender.send_request(request.body(Full::new(body.freeze()))?).await?.into_parts();
    let trailers = body.collect().await?.trailers().cloned().unwrap_or_default();
    let find = |name: &str| {
        let value = head.headers.get(name).or_else(|| trailers.get(name));
        value.and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
    };
    Ok((find("grpc-status"), find("grpc-message")))
}

async fn odd_calls(root: &Path) -> Result<()> {
    const UNIMPLEMENTED: &str = "12";
    const INVALID_ARGUMENT: &str = "3";
    for (socket, service) in [
        ("pods/kubelet.sock", "v1.Pods"),
        ("pod-resources/kubelet.sock", "v1.PodResourcesLister"),
        ("device-plugins/kubelet.sock", "v1beta1.Registration"),
    ] {
        let socket = root.join(socket);
        let mut sender = dial(&socket).await?;
        for number in 0..300 {
            let method =
                [format!("{service}/Nothing{number}"), format!("no.such.Service{number}/List"), "x".to_owned()];
            let (status, _) = call(&mut sender, &method[number % 3], b"\xff\xff\xff", None).await?;
            ensure!(status == UNIMPLEMENTED, "{} {}: {status}", socket.display(), method[number % 3]);
        }
        for rubbish in [
            &b"\0\0\0"[..],
            b"GET / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            UnixStream::connect(&socket)?.write_all(rubbish)?;
        }
    }
    let mut sender = dial(&root.join("pods/kubelet.sock")).await?;
    let mask = |count: usize, last: &str| vec!["status.phase"; count - 1].join(",") + "," + last;
    for (mask, wanted, words) in [
        (mask(10_000, "status.podIPs"), "0", ""),
        (mask(10_001, "status.podIPs"), INVALID_ARGUMENT, "10001"),
        (mask(9_000, "status.nonsense"), INVALID_ARGUMENT, "nonsense"),
        ("status.".repeat(3000), INVALID_ARGUMENT, "status.status"),
    ] {
        let begun = Instant::now();
        let (status, message) = call(&mut sender, "v1.Pods/ListPods", b"", Some(&mask)).await?;
        ensure!(
            status == wanted && message.contains(words),
            "{status} {}",
            message.chars().take(200).collect::<String>()
        );
        ensure!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    }
    // Beyond what a head may hold: this call fails, the next does not.
    let _ = call(&mut sender, "v1.Pods/ListPods", b"", Some(&mask(40_000, "status.podIPs"))).await;
    let mut sender = dial(&root.join("pods/kubelet.sock")).await?;
    let (status, message) = call(&mut sender, "v1.Pods/ListPods", b"", None).await?;
    ensure!(status == "0", "{status} {message}");
    Ok(())
}

/// A socket whose clients all get the same bytes, or silence.
fn babble(path: &Path, bytes: &'static [u8]) -> Result<()> {
    let listener = UnixListener::bind(path)?;
    // Ends with the test's process.
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for client in listener.incoming().flatten() {
            let mut client = client;
            let _ = client.write_all(bytes);
            if bytes.is_empty() {
                held.push(client);
            }
        }
    });
    Ok(())
}

/// Serves HTTP/2 whose every answer is a message that is none.
async fn garbage(path: &Path) -> Result<()> {
    let listener = tokio::net::UnixListener::bind(path)?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = |_| async {
                let body = Full::new(Bytes::from_static(b"\0\0\0\0\x06\x0a\xff\xff\xff\xff\x7f"));
                http::Response::builder().header("content-type", "application/grpc").body(body)
            };
            let service = hyper::service::service_fn(answer);
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    Ok(())
}

async fn bad_plugins(root: &Path) -> Result<()> {
    let (devices, registry) = (root.join("device-plugins"), root.join("plugins_registry"));
    babble(&devices.join("noise.sock"), b"\xde\xad\xbe\xef\0\0\0\0\0\0\0\0\0\0\0\0")?;
    babble(&devices.join("silence.sock"), b"")?;
    garbage(&devices.join("garbage.sock")).await?;
    babble(&registry.join("noise-reg.sock"), b"HTTP/1.1 200 OK\r\n\r\n")?;
    babble(&registry.join("silence-reg.sock"), b"")?;
    garbage(&registry.join("garbage-reg.sock")).await?;
    let mut registrations = tokio::task::JoinSet::new();
    for name in ["noise", "silence", "garbage", "absent"] {
        let field = |number: u8, text: &str| [&[number << 3 | 2, text.len() as u8][..], text.as_bytes()].concat();
        let resource = format!("example.com/{name}");
        let message = [field(1, "v1beta1"), field(2, &format!("{name}.sock")), field(3, &resource)].concat();
        let mut sender = dial(&devices.join("kubelet.sock")).await?;
        registrations.spawn(async move {
            let asked = call(&mut sender, "v1beta1.Registration/Register", &message, None);
            let (status, _) = tokio::time::timeout(Duration::from_secs(60), asked).await.context(name)??;
            ensure!(status != "0" && !status.is_empty(), "{name} was taken for a plugin: {status}");
            Ok(())
        });
    }
    registrations.join_all().await.into_iter().collect()
}

#[test]
fn whoever_abuses_the_node_leaves_its_pods_alone() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let server = ApiServer::start("abuse", &[])?;
    let plain = free_port()?;
    let node = Node::start("abuse-node", &server, &format!("readOnlyPort: {plain}\n"))?;
    let (agent, root) = (node.agent_pid(), node.dir.join("kubelet"));
    pace(&server, &node, "alone", "alone")?;
    slow_clients(&server, &node, plain)?;
    giant_heads(&node, plain)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(odd_calls(&root))?;
    let plugins = runtime.spawn(async move { bad_plugins(&root).await });
    pace(&server, &node, "beside-plugins", "beside plugins that answer garbage")?;
    endless_input(&server, &node)?;
    runtime.block_on(plugins)??;
    ensure!(
        Path::new(&format!("/proc/{agent}")).exists() && node.is_ready(&server),
        "the agent lives on\n{}",
        node.logs()
    );
    let log = std::fs::read_to_string(node.dir.join("node-agent.log"))?;
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}
