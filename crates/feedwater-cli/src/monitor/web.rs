//! How is a snapshot shown in a browser, and to nobody else?
//!
//! Loopback is not private: every page in the user's browser can send requests to it, and so can every user of the
//! machine. Hence:
//!
//! - a request must name this server as its host, so that a foreign name that was made to point here (DNS rebinding)
//!   gets nothing;
//! - figures need a secret. The link that is printed carries one in its fragment, which no browser sends and no log keeps;
//!   the page exchanges it, once, for a cookie that scripts cannot read and other sites cannot use. Programs have a token
//!   of their own;
//! - nothing but `GET` is answered, nothing can be changed, and the page may load nothing from elsewhere.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::{Monitor, metrics, snapshot::Snapshot};

/// Pages that are open at the same time.
const MOST_PAGES: usize = 32;
/// The page may run its own script and style, talk to this server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const HEADERS: [(header::HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];
/// What the page is made of.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("page/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// Serves until the process is ended. `opened` is told the link to the page, the address and the token of programs, and
/// every further link.
pub(crate) fn serve(
    mut monitor: Monitor,
    interval: Duration,
    port: u16,
    opened: impl Fn(&Opened<'_>) + Send + Sync + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        let port = listener.local_addr()?.port();
        let (send, frames) = watch::channel(Arc::new(Moment::of(monitor.sample())));
        // Reading the driver and the kernel can take a moment, in which pages are still to be served.
        std::thread::Builder::new().name("sample".to_owned()).spawn(move || {
            while !send.is_closed() {
                std::thread::sleep(interval);
                send.send_replace(Arc::new(Moment::of(monitor.sample())));
            }
        })?;
        let server = Arc::new(Server {
            port,
            link: Mutex::new(secret()?),
            session: secret()?,
            token: secret()?,
            frames,
            pages: Arc::new(Semaphore::new(MOST_PAGES)),
            opened: Box::new(opened),
        });
        (server.opened)(&Opened::First { link: &server.link(), port, token: &server.token });
        axum::serve(listener, Router::new().fallback(answer).with_state(server)).await
    })
}

/// What there is to tell the user.
pub(crate) enum Opened<'a> {
    First {
        link: &'a str,
        port: u16,
        token: &'a str,
    },
    /// The last link was used; this is for another browser.
    Next {
        link: &'a str,
    },
}

struct Moment {
    snapshot: Snapshot,
    json: String,
}

impl Moment {
    fn of(snapshot: Snapshot) -> Self {
        let json = serde_json::to_string(&snapshot).expect("a snapshot is plain data");
        Self { snapshot, json }
    }
}

struct Server {
    port: u16,
    /// Good for one browser.
    link: Mutex<String>,
    /// In the cookie of those that used a link.
    session: String,
    /// For programs.
    token: String,
    frames: watch::Receiver<Arc<Moment>>,
    pages: Arc<Semaphore>,
    opened: Box<dyn Fn(&Opened<'_>) + Send + Sync>,
}

/// 192 random bits, in letters that need no escaping.
fn secret() -> io::Result<String> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let digit = |value: u8| char::from_digit(u32::from(value), 16).expect("four bits");
    Ok(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect())
}

/// In a time that does not tell how much of it was right.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

async fn answer(State(server): State<Arc<Server>>, request: Request) -> Response {
    let mut response = server.answer(&request);
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Server {
    fn answer(&self, request: &Request) -> Response {
        let refused = |code: StatusCode, why: &'static str| (code, format!("{why}\n")).into_response();
        if !self.is_for_us(request) {
            return refused(StatusCode::FORBIDDEN, "this is not the host that was asked for");
        }
        if request.method() != Method::GET {
            let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
            return response;
        }
        let path = request.uri().path();
        if let Some((_, kind, text)) = FILES.iter().find(|(name, ..)| *name == path) {
            return ([(header::CONTENT_TYPE, *kind)], *text).into_response();
        }
        if path == "/session" {
            return match bearer(request.headers()) {
                Some(token) if self.spend(token) => self.welcome(),
                _ => refused(StatusCode::UNAUTHORIZED, "this link was used already, or is not one"),
            };
        }
        if !["/events", "/snapshot", "/metrics"].contains(&path) {
            return refused(StatusCode::NOT_FOUND, "there is no such page");
        }
        if !self.may_see(request) {
            let mut response =
                refused(StatusCode::UNAUTHORIZED, "open the link that the command has printed");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        let now = Arc::clone(&self.frames.borrow());
        match path {
            "/metrics" => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&now.snapshot))
                .into_response(),
            "/snapshot" => ([(header::CONTENT_TYPE, "application/json")], now.json.clone()).into_response(),
            _ => match Arc::clone(&self.pages).try_acquire_owned() {
                Ok(permit) => self.events(permit),
                Err(_) => refused(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open"),
            },
        }
    }

    /// Whether the request names this server and nobody else.
    fn is_for_us(&self, request: &Request) -> bool {
        let ours = |host: &[u8]| {
            [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)]
                .iter()
                .any(|name| host.eq_ignore_ascii_case(name.as_bytes()))
        };
        let hosts: Vec<_> = request.headers().get_all(header::HOST).iter().collect();
        let named = request.uri().authority().is_none_or(|authority| ours(authority.as_str().as_bytes()));
        named && matches!(hosts[..], [host] if ours(host.as_bytes()))
    }

    /// Takes the secret of a link, once.
    fn spend(&self, token: &str) -> bool {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        // Only if there is a next one: no secret is taken twice.
        let spent = same(&link, token) && secret().map(|next| *link = next).is_ok();
        drop(link);
        if spent {
            (self.opened)(&Opened::Next { link: &self.link() });
        }
        spent
    }

    fn link(&self) -> String {
        let secret = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        format!("http://127.0.0.1:{}/#{secret}", self.port)
    }

    /// Cookies do not tell ports apart, so the name does.
    fn cookie(&self) -> String {
        format!("feedwater_{}", self.port)
    }

    fn welcome(&self) -> Response {
        let cookie = format!("{}={}; HttpOnly; SameSite=Strict; Path=/", self.cookie(), self.session);
        (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
    }

    fn may_see(&self, request: &Request) -> bool {
        let headers = request.headers();
        let name = self.cookie();
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let has_cookie = cookies.flat_map(|all| all.split(';')).any(|cookie| {
            cookie
                .trim()
                .split_once('=')
                .is_some_and(|(key, value)| key == name && same(value, &self.session))
        });
        let in_query = || {
            let query = request.uri().query().unwrap_or_default();
            query.split('&').any(|pair| {
                pair.split_once('=').is_some_and(|(key, value)| key == "token" && same(value, &self.token))
            })
        };
        has_cookie || bearer(headers).is_some_and(|token| same(token, &self.token)) || in_query()
    }

    /// Every snapshot, as it comes; one that a slow reader missed is left out.
    fn events(&self, permit: OwnedSemaphorePermit) -> Response {
        let mut frames = self.frames.clone();
        frames.mark_changed();
        let (send, stream) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let _permit = permit;
            loop {
                tokio::select! {
                    () = send.closed() => break,
                    changed = frames.changed() => if changed.is_err() { break },
                }
                let moment = Arc::clone(&frames.borrow_and_update());
                if send.send(moment).await.is_err() {
                    break;
                }
            }
        });
        let stream = ReceiverStream::new(stream).map(|moment: Arc<Moment>| {
            Ok::<_, Infallible>(Event::default().event("snapshot").data(&moment.json))
        });
        Sse::new(stream).keep_alive(KeepAlive::default()).into_response().map(Body::new)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}
