use super::*;

#[test]
fn what_nobody_could_decide_reaches_no_handler() {
    let response = undecided("/api/v1/pods", "no answer");
    assert_eq!(response.status(), 500);
    assert_eq!(response.extensions().get(), Some(&metrics::Unhandled::Refused));
}

/// A request as it comes out of a connection, and the connection's own.
async fn received(text: &'static str) -> (http::Request<Incoming>, impl Sized) {
    let (mut ours, theirs) = tokio::io::duplex(1024);
    let (sender, mut received) = tokio::sync::mpsc::channel(1);
    let service = hyper::service::service_fn(move |request| {
        let sender = sender.clone();
        async move {
            let _ = sender.send(request).await;
            future::pending::<std::result::Result<Response, std::convert::Infallible>>().await
        }
    });
    let io = hyper_util::rt::TokioIo::new(theirs);
    tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
    tokio::io::AsyncWriteExt::write_all(&mut ours, text.as_bytes()).await.expect("sent");
    (received.recv().await.expect("a request"), ours)
}

/// A write goes on when its client hangs up, and it left no trace of what came of it.
#[tokio::test]
async fn what_is_audited_hears_of_a_write_whose_client_is_gone() {
    let place = |end: &str| std::env::temp_dir().join(format!("audit-{}.{end}", crate::random::uuid()));
    let (file, path) = (place("yaml"), place("log"));
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n";
    std::fs::write(&file, policy).expect("written");
    let policy = crate::audit::Policy::load(&file).expect("a policy");
    std::fs::remove_file(&file).expect("ours");
    let options =
        crate::audit::LogOptions { path: path.clone(), max_age_days: 0, max_backups: 0, max_size_megabytes: 0 };
    let log = crate::audit::Log::open(options).expect("a file");
    let mut server = crate::serve::testing::server().await;
    let alone = Arc::get_mut(&mut server).expect("nobody else has it");
    alone.audit = Some(crate::audit::Auditor::new(policy, log));
    let peer = Arc::new(Peer { address: ([127, 0, 0, 1], 9).into(), certificates: Default::default() });
    let head = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
    let (request, _connection) = received(head).await;
    assert!(server.answer(request, &peer).now_or_never().is_none(), "it has only begun");
    let ended = || std::fs::read_to_string(&path).is_ok_and(|text| text.contains("ResponseComplete"));
    for _ in 0..1000 {
        if ended() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let text = std::fs::read_to_string(&path).expect("the file");
    std::fs::remove_file(&path).expect("ours");
    let last: serde_json::Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["stage"], &last["verb"]), (&"ResponseComplete".into(), &"create".into()), "{text}");
    assert_eq!(last["responseStatus"]["code"], 403, "nobody known has asked");
}
