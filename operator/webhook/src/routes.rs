//! The HTTP routes of the webhook: an axum router around [`Parsed::judge`].
//!
//! Every answer is an `AdmissionReview`. A valid request is answered with HTTP 200, whatever the verdict. A request that no
//! API server sends gets the HTTP status that fits, and an explanation in the body.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Version, header};
use http_body_util::BodyExt as _;
use ipam_core::PoolKind;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::cache::AdmissionCache;
use super::judge::{Parsed, RefusalStatus};
use super::limits::Limits;
use super::memory_budget::{MemoryBudget, Reservation};
use super::metrics::WebhookMetrics;
use super::worker_pools::WorkerPools;
use super::{answer, review};

/// The paths, and the kind of pool that is reviewed at each (behaviour.md §1).
pub const PATHS: [(&str, PoolKind); 2] = [
    ("/validate-nv-ipam-nvidia-com-v1alpha1-ippool", PoolKind::IpPool),
    ("/validate-nv-ipam-nvidia-com-v1alpha1-cidrpool", PoolKind::CidrPool),
];

/// The state that every request needs.
#[derive(Clone)]
pub struct AdmissionService {
    known: Arc<RwLock<AdmissionCache>>,
    metrics: WebhookMetrics,
    limits: Limits,
    /// Budget for the bytes of all bodies.
    bodies: Arc<MemoryBudget>,
    /// Budget for the number of requests.
    requests: Arc<MemoryBudget>,
    lanes: WorkerPools,
}

impl AdmissionService {
    /// A service that decides by the current content of `known`.
    pub fn new(known: Arc<RwLock<AdmissionCache>>, metrics: WebhookMetrics, limits: Limits) -> Self {
        let (bodies, requests) = (MemoryBudget::new(limits.all_body_bytes), MemoryBudget::new(limits.requests));
        Self {
            known,
            metrics,
            limits,
            bodies: Arc::new(bodies),
            requests: Arc::new(requests),
            lanes: WorkerPools::default(),
        }
    }

    /// The router of all paths.
    pub fn router(self) -> Router {
        let review = |kind: Option<PoolKind>| {
            move |State(site): State<Self>, request: Request| async move { site.answer(kind, request).await }
        };
        let routes = PATHS.into_iter().fold(Router::new(), |router, (path, kind)| {
            // The service also answers other methods, like every request.
            router.route(path, any(review(Some(kind))))
        });
        routes.fallback(review(None)).with_state(self)
    }

    async fn answer(self, kind: Option<PoolKind>, request: Request) -> Response {
        let _under_way = UnderWay::begin(&self.metrics);
        let (mut head, mut body) = request.into_parts();
        let Cut(cut) = head.extensions.remove().unwrap_or_default();
        let place = Place::take(&self.requests, &self.bodies);
        let judged = match self.receive(&mut body, &place).await {
            Ok(body) => self.judge(kind, head, body, &place).await,
            Err(failure) => {
                if matches!(failure, Failure::TooLarge) && head.version == Version::HTTP_2 {
                    tokio::spawn(timeout(self.limits.body, passed_over(body)));
                }
                Err(failure)
            }
        };
        let (status, bytes) = match judged {
            Ok(answer) => answer,
            Err(failure) => {
                self.metrics.cut_off(failure.word(), 1);
                (failure.status(), answer::unread("", RefusalStatus::BadRequest, &failure.message(&self.limits)))
            }
        };
        let place = self.place_of_answer(place.request, &cut);
        respond(status, Bytes::from_owner(Answer { bytes, _place: place }))
    }

    /// The reservation for an answer: that of its request, or a new one if the request was aborted. If others need the room,
    /// the answer's connection is closed.
    fn place_of_answer(&self, request: Reservation, cut: &CancellationToken) -> Reservation {
        if request.wait_again(cut.clone()) {
            return request;
        }
        let place = self.requests.begin(cut.clone());
        if !place.grow(1) {
            cut.cancel();
        }
        place
    }

    /// Receives the body, within its limits of time and size.
    async fn receive(&self, body: &mut Body, place: &Place) -> Result<Bytes, Failure> {
        let all = async {
            let (mut received, mut size) = (Received::default(), 0_usize);
            while let Some(frame) = body.frame().await {
                let Ok(piece) = frame.map_err(|_| Failure::Broken)?.into_data() else { continue };
                size += piece.len();
                if size > self.limits.body_bytes {
                    return Err(Failure::TooLarge);
                }
                if !place.body.grow(piece.len()) {
                    return Err(Failure::Evicted);
                }
                received.push(piece);
            }
            Ok(received.whole())
        };
        tokio::select! {
            biased;
            () = place.give_up.cancelled() => Err(Failure::Evicted),
            received = timeout(self.limits.body, all) => received.unwrap_or(Err(Failure::TooSlow)),
        }
    }

    /// Reviews a small body at once. A larger one waits for a place and is reviewed on a thread of its own.
    async fn judge(
        &self,
        kind: Option<PoolKind>,
        head: Parts,
        body: Bytes,
        place: &Place,
    ) -> Result<(StatusCode, Vec<u8>), Failure> {
        let size = body.len();
        if size <= self.limits.aside_bytes {
            return Ok(self.judge_now(kind, &head, &body));
        }
        let lane = tokio::select! {
            lane = timeout(self.limits.turn, self.lanes.enter(size > self.limits.large_bytes)) => {
                lane.map_err(|_| Failure::TooBusy)?
            }
            () = place.give_up.cancelled() => return Err(Failure::Evicted),
        };
        if !(place.request.keep() && place.body.keep()) {
            return Err(Failure::Evicted);
        }
        let (own, share) = (self.clone(), place.body.clone());
        let work = move || {
            let answer = own.judge_now(kind, &head, &body);
            // Dropped by the thread and not by the handler: a client that disconnects does not stop a review in progress.
            drop((body, share, lane));
            answer
        };
        let failed = |_| {
            let message = "the review ended without a verdict; this is a mistake in the webhook";
            (StatusCode::INTERNAL_SERVER_ERROR, answer::unread("", RefusalStatus::BadRequest, message))
        };
        Ok(tokio::task::spawn_blocking(work).await.unwrap_or_else(failed))
    }

    fn judge_now(&self, kind: Option<PoolKind>, head: &Parts, body: &[u8]) -> (StatusCode, Vec<u8>) {
        let read = asked_rightly(kind, head).map_err(|(status, message)| {
            (status, answer::unread(&review::salvage_uid(body), RefusalStatus::BadRequest, &message))
        });
        let read = read.and_then(|kind| {
            review::read(kind, body).map_err(|unread| {
                let status = if unread.is_review { StatusCode::OK } else { StatusCode::BAD_REQUEST };
                (status, answer::unread(&unread.uid, RefusalStatus::BadRequest, &unread.message))
            })
        });
        let review = match read {
            Ok(review) => review,
            Err(answer) => {
                self.metrics.unread();
                return answer;
            }
        };
        // Specs are parsed before the lock is acquired, so that a large one does not delay watch events.
        let parsed = Parsed::of(&review);
        let verdict = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            parsed.judge(&review, &known)
        };
        self.metrics.judged(&review, &verdict);
        (StatusCode::OK, answer::answer(&review.uid, &review.key(), &verdict))
    }
}

/// The kind of pool to review, or the status and message for a request that no API server sends.
fn asked_rightly(kind: Option<PoolKind>, head: &Parts) -> Result<PoolKind, (StatusCode, String)> {
    let Some(kind) = kind else {
        let known = PATHS.map(|(path, _)| path).join(" and ");
        return Err((StatusCode::NOT_FOUND, format!("nothing is reviewed at this path, but at {known}")));
    };
    if head.method != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "a review is sent with POST".to_owned()));
    }
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = content_type.split(';').next().unwrap_or("").trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        let message = "a review is sent as Content-Type: application/json".to_owned();
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    Ok(kind)
}

fn respond(status: StatusCode, bytes: Bytes) -> Response {
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
    }
    response
}

/// Reads the rest of a body and discards it. An HTTP/2 stream that is not read to its end is reset, and a client that is
/// still sending may then miss the answer.
async fn passed_over(mut body: Body) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// Closes the connection of a request, which has it as an extension.
#[derive(Clone, Default)]
pub(super) struct Cut(pub(super) CancellationToken);

/// The reservations of a request.
struct Place {
    request: Reservation,
    /// Shared with the review, which continues after its client has disconnected.
    body: Arc<Reservation>,
    /// Cancelled when the request is aborted to make room.
    give_up: CancellationToken,
}

impl Place {
    fn take(requests: &Arc<MemoryBudget>, bodies: &Arc<MemoryBudget>) -> Self {
        let give_up = CancellationToken::new();
        let request = requests.begin(give_up.clone());
        // If there is no room, `give_up` is cancelled, and `receive` sees that before the body.
        request.grow(1);
        Self { request, body: Arc::new(bodies.begin(give_up.clone())), give_up }
    }
}

/// The bytes of an answer. They keep their reservation until hyper has dropped the last of them, because an HTTP/2 client
/// decides how much of each answer it reads, and when.
struct Answer {
    bytes: Vec<u8>,
    _place: Reservation,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The received part of a body. A single piece is used as it is. Several pieces are copied and dropped at once, because each
/// keeps alive what was read along with it: a body that arrives byte by byte would take forty times its counted size.
#[derive(Default)]
struct Received {
    first: Bytes,
    all: Vec<u8>,
}

impl Received {
    fn push(&mut self, piece: Bytes) {
        if self.first.is_empty() && self.all.is_empty() {
            self.first = piece;
            return;
        }
        let first = std::mem::take(&mut self.first);
        self.all.extend_from_slice(&first);
        self.all.extend_from_slice(&piece);
    }

    fn whole(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }
}

/// Why a body was not reviewed.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Broken,
    TooLarge,
    TooSlow,
    Evicted,
    TooBusy,
}

impl Failure {
    const fn status(self) -> StatusCode {
        match self {
            Self::Broken => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Evicted | Self::TooBusy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::TooLarge => "oversized",
            Self::TooSlow => "stalled",
            Self::Evicted => "evicted",
            Self::TooBusy => "busy",
        }
    }

    fn message(self, limits: &Limits) -> String {
        match self {
            Self::Broken => "the body broke off".to_owned(),
            Self::TooLarge => format!("the body is larger than {} bytes", limits.body_bytes),
            Self::TooSlow => format!("the body was not here within {} s", limits.body.as_secs()),
            Self::Evicted => "there was no room for the body among those of other requests".to_owned(),
            Self::TooBusy => {
                let seconds = limits.turn.as_secs();
                format!("other large reviews took all places for {seconds} s; try again")
            }
        }
    }
}

/// Counts a request from its head to its answer, or to the end of its connection.
struct UnderWay {
    metrics: WebhookMetrics,
    began: Instant,
}

impl UnderWay {
    fn begin(metrics: &WebhookMetrics) -> Self {
        metrics.began();
        Self { metrics: metrics.clone(), began: Instant::now() }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.metrics.ended(self.began.elapsed());
    }
}
