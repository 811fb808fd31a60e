//! exec, attach, port-forward and run: the runtime names a streaming server on this host, and the upgraded connection is
//! carried to it.
//!
//! SPDY and the older WebSocket protocols go through byte for byte; what runtimes do not speak is translated. Everything
//! about the pod is checked first, so that a mistake is an HTTP answer and not a broken stream.

mod options;
mod spdy;
mod translate;
mod upgrade;
mod websocket;

pub(super) use websocket::is_upgrade as is_websocket;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use proto::api::core::v1::Pod;
use proto::cri;
use tonic::Code;

use self::options::Options;
use self::upgrade::StreamError;
use super::answers::{Answer, bare, json, plain, text};
use super::forms::Form;
use super::route::Target;
use crate::metrics;
use crate::pod::spec::PodExt;
use crate::pods::{ContainerInfo, FindError, Handle};

/// Runtimes forget a stream that nobody has opened after as long (`CacheTTL` of the kubelet's library for their servers).
const STREAMS_EXPIRE_SECONDS: &str = "60";

/// A refusal: status and text.
type Refusal = (StatusCode, String);

/// `extended`: WebSocket clients are served whose protocols runtimes do not speak (gate `ExtendWebSocketsToKubelet`).
pub(super) async fn exec(
    pods: &Handle,
    target: &Target,
    mut request: Request<Incoming>,
    extended: bool,
) -> Response<Answer> {
    let prepared = async {
        let (options, _, container) = prepare(pods, target, &mut request, |name, _| not_found(name)).await?;
        let url = pods.exec(cri::ExecRequest {
            container_id: container.id,
            cmd: options.command.clone(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
        });
        Ok((url.await.map_err(unstreamed)?, options))
    };
    match prepared.await {
        Ok((url, options)) => carry("exec", &url, extended.then_some(options), request).await,
        Err(refusal) => refused(refusal),
    }
}

/// `extended` as for [`exec`].
pub(super) async fn attach(
    pods: &Handle,
    target: &Target,
    mut request: Request<Incoming>,
    extended: bool,
) -> Response<Answer> {
    let prepared = async {
        let missing = |name: &str, pod: &Pod| format!("container {name} not found in pod {}", full_name(pod));
        let (mut options, pod, container) = prepare(pods, target, &mut request, missing).await?;
        // Here the kubelet does look at the uid, after the container.
        if target.uid.as_ref().is_some_and(|uid| *uid != pod.uid()) {
            return Err((StatusCode::INTERNAL_SERVER_ERROR, format!("pod {} not found", full_name(&pod))));
        }
        // Whether there is a terminal is the container's to say; the runtime refuses one with a stderr of its own.
        options.tty = container.tty;
        let url = pods.attach(cri::AttachRequest {
            container_id: container.id,
            stdin: options.stdin,
            tty: options.tty,
            stdout: options.stdout,
            stderr: options.stderr,
        });
        Ok((url.await.map_err(unstreamed)?, options))
    };
    match prepared.await {
        Ok((url, options)) => carry("attach", &url, extended.then_some(options), request).await,
        Err(refusal) => refused(refusal),
    }
}

/// `extended` as for [`exec`].
pub(super) async fn port_forward(
    pods: &Handle,
    target: &Target,
    request: Request<Incoming>,
    extended: bool,
) -> Response<Answer> {
    let web = websocket::is_upgrade(request.headers());
    let tunnel = extended && web && websocket::tunneled(request.headers()).next().is_some();
    let prepared = async {
        // SPDY clients name their ports in the streams.
        let port = match web && !tunnel {
            true => {
                options::ports(request.uri().query().unwrap_or("")).map_err(|why| (StatusCode::BAD_REQUEST, why))?
            }
            false => Vec::new(),
        };
        let pod = find(pods, target).await?;
        // Here the kubelet does look at the uid.
        if target.uid.as_ref().is_some_and(|uid| *uid != pod.uid()) {
            return Err((StatusCode::NOT_FOUND, "pod not found".to_owned()));
        }
        let missing = || (StatusCode::INTERNAL_SERVER_ERROR, format!("pod not found ({:?})", full_name(&pod)));
        let sandbox = pods.sandbox(&pod).await.map_err(|error| match error {
            FindError::NoPod(_) => missing(),
            error => unstreamed(error),
        })?;
        pods.port_forward(cri::PortForwardRequest { pod_sandbox_id: sandbox, port }).await.map_err(unstreamed)
    };
    let url = match prepared.await {
        Ok(url) => url,
        Err(refusal) => return refused(refusal),
    };
    if !is_upgrade(request.headers()) {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required\n");
    }
    let carried = if tunnel {
        metrics::WEBSOCKET_STREAMING.inc(&["portforward"]);
        translate::tunnel(&url, request).await
    } else {
        upgrade::pass(&url, request).await
    };
    carried.unwrap_or_else(unanswered)
}

/// A command without streams: its output is the answer.
pub(super) async fn run(pods: &Handle, target: &Target, mut request: Request<Incoming>) -> Response<Answer> {
    let form = Form::read_with_parts(&mut request).await;
    let command: Vec<String> = form.first("cmd").split(' ').map(str::to_owned).collect();
    let outcome = async {
        let pod = find(pods, target).await?;
        let container = pods.running(&pod, &target.container).await.map_err(|error| match error {
            FindError::NoContainer(name) => (StatusCode::INTERNAL_SERVER_ERROR, not_found(&name)),
            error => failed(error),
        })?;
        let answer = pods.exec_sync(&container.id, command.clone()).await.map_err(failed)?;
        if answer.exit_code == 0 {
            return Ok([answer.stdout, answer.stderr].concat());
        }
        let (words, said) = (command.join(" "), String::from_utf8_lossy(&answer.stderr));
        Err((StatusCode::INTERNAL_SERVER_ERROR, format!("command '{words}' exited with {}: {said}", answer.exit_code)))
    };
    match outcome.await {
        // Of nothing there is no type.
        Ok(output) if output.is_empty() => bare(StatusCode::OK, output),
        Ok(output) => json(output),
        Err((code, why)) => plain(code, why),
    }
}

/// What exec and attach begin with: the options, the pod and its running container.
async fn prepare(
    pods: &Handle,
    target: &Target,
    request: &mut Request<Incoming>,
    missing: impl Fn(&str, &Pod) -> String,
) -> Result<(Options, std::sync::Arc<Pod>, ContainerInfo), Refusal> {
    let form = Form::read_with_parts(request).await;
    let options = Options::of(&form).map_err(|why| (StatusCode::BAD_REQUEST, why.into()))?;
    let pod = find(pods, target).await?;
    let container = pods.running(&pod, &target.container).await.map_err(|error| match error {
        FindError::NoContainer(name) => (StatusCode::INTERNAL_SERVER_ERROR, missing(&name, &pod)),
        error => unstreamed(error),
    })?;
    Ok((options, pod, container))
}

/// The pod of that name. The uid in the path says nothing: the kubelet does not look at it either.
async fn find(pods: &Handle, target: &Target) -> Result<std::sync::Arc<Pod>, Refusal> {
    let found = pods.find(&target.namespace, &target.pod, None).await;
    found.map_err(|_| (StatusCode::NOT_FOUND, "pod does not exist".to_owned()))
}

fn full_name(pod: &Pod) -> String {
    format!("{}_{}", pod.name(), pod.namespace())
}

fn not_found(container: &str) -> String {
    format!("container not found ({container:?})")
}

fn failed(error: FindError) -> Refusal {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// The same for a stream: what the runtime does not find, or has no room for, is so for the client too.
fn unstreamed(error: FindError) -> Refusal {
    let code = match &error {
        FindError::Runtime(error) if error.code == Code::NotFound => StatusCode::NOT_FOUND,
        FindError::Runtime(error) if error.code == Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (code, error.to_string())
}

fn refused((code, why): Refusal) -> Response<Answer> {
    let mut answer = plain(code, why);
    if code == StatusCode::TOO_MANY_REQUESTS {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(STREAMS_EXPIRE_SECONDS));
    }
    answer
}

/// What the kubelet's proxy answers for a runtime that cannot be reached.
fn unanswered(error: StreamError) -> Response<Answer> {
    text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION);
    values.iter().filter_map(|v| v.to_str().ok()).any(|v| v.to_ascii_lowercase().contains("upgrade"))
}

/// Carries a session to the runtime; with `options` those of WebSocket clients that the runtime would not understand, too.
async fn carry(subresource: &str, url: &str, options: Option<Options>, request: Request<Incoming>) -> Response<Answer> {
    if !is_upgrade(request.headers()) {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required\n");
    }
    let web = websocket::is_upgrade(request.headers());
    let translated = options.filter(|_| web && websocket::offers(request.headers(), translate::CHANNELS));
    let carried = match translated {
        Some(options) => {
            metrics::WEBSOCKET_STREAMING.inc(&[subresource]);
            if let Some(refused) = websocket::refuse(request.method(), request.headers()) {
                return refused;
            }
            translate::channels(url, options, request)
        }
        None => upgrade::pass(url, request).await,
    };
    carried.unwrap_or_else(unanswered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::CriError;

    #[test]
    fn a_runtimes_refusal_of_a_stream_keeps_its_meaning() {
        let of = |code: Code| {
            let answer = refused(unstreamed(FindError::Runtime(CriError { code, message: "m".into() })));
            let later = answer.headers().get(header::RETRY_AFTER).map(|value| value.as_bytes().to_vec());
            (answer.status().as_u16(), later)
        };
        assert_eq!(of(Code::NotFound), (404, None));
        assert_eq!(of(Code::ResourceExhausted), (429, Some(b"60".to_vec())));
        assert_eq!(of(Code::Unknown), (500, None));
        assert_eq!(unstreamed(FindError::Stopping).0, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
