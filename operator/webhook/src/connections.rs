//! The table of open connections: the state of each, and which of them must close.
//!
//! It decides, and closes a connection only by the token that the connection watches. It never closes a connection with a
//! request in progress, except at shutdown after [`Limits::finish`].

use std::collections::HashMap;
use std::time::{Instant, SystemTime};

use tokio_util::sync::CancellationToken;

use super::limits::Limits;

/// Identifies a connection. Ids increase, so a smaller id is an older connection.
pub(super) type Id = u64;

/// What a connection is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The TLS handshake is under way.
    Handshake,
    /// No request is under way.
    Idle,
    /// Part of a request's head has arrived. With HTTP/2 also the time from the handshake to the first request, because a
    /// client opens such a connection only to send one.
    Head,
    /// This number of requests is in progress.
    Busy(u32),
}

/// The HTTP version of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    /// One request after another. The server can close the connection without losing a request only with an answer.
    Http1,
    /// Concurrent requests. The server can close the connection at any time without losing a request.
    Http2,
}

/// The signals that end a connection.
#[derive(Clone, Default, Debug)]
pub(super) struct Signals {
    /// Finish the requests in progress and accept no more.
    pub(super) retire: CancellationToken,
    /// Close at once.
    pub(super) cut: CancellationToken,
}

#[derive(Debug)]
struct ConnectionState {
    stage: Stage,
    since: Instant,
    protocol: Protocol,
    /// Whether the connection has had a request. Idle connections without one are evicted first.
    was_asked: bool,
    /// From then on the client is asked to close the connection.
    retires: Instant,
    /// From then on the server answers no request on the connection.
    expires: Option<SystemTime>,
    signals: Signals,
}

/// Numbers of connections closed during the handshake and during a request's head.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Swept {
    pub(super) handshakes: usize,
    pub(super) heads: usize,
}

/// The table of all connections.
#[derive(Debug)]
pub(super) struct ConnectionTable {
    seats: HashMap<Id, ConnectionState>,
    next: Id,
    limits: Limits,
}

impl ConnectionTable {
    /// An empty table.
    pub(super) fn new(limits: Limits) -> Self {
        Self { seats: HashMap::new(), next: 0, limits }
    }

    /// The number of connections.
    pub(super) fn len(&self) -> usize {
        self.seats.len()
    }

    /// Adds an accepted connection. If the table is full, it evicts another one. Returns `None` if all have requests in
    /// progress.
    pub(super) fn enter(&mut self, now: Instant) -> Option<(Id, Signals)> {
        if self.seats.len() >= self.limits.connections {
            let id = self.weakest()?;
            self.cut(id);
        }
        let (id, signals) = (self.next, Signals::default());
        self.next += 1;
        let retires = now + self.limits.life;
        let seat = ConnectionState {
            stage: Stage::Handshake,
            since: now,
            protocol: Protocol::Http1,
            was_asked: false,
            retires,
            expires: None,
            signals: signals.clone(),
        };
        self.seats.insert(id, seat);
        Some((id, signals))
    }

    /// Records the end of a handshake. From `retires` on the connection is to close, and from `expires` on nothing is
    /// answered on it.
    pub(super) fn greeted(
        &mut self,
        id: Id,
        now: Instant,
        protocol: Protocol,
        retires: Option<Instant>,
        expires: Option<SystemTime>,
    ) {
        if let Some(seat) = self.seats.get_mut(&id) {
            let stage = if protocol == Protocol::Http2 { Stage::Head } else { Stage::Idle };
            (seat.stage, seat.since, seat.protocol, seat.expires) = (stage, now, protocol, expires);
            seat.retires = retires.map_or(seat.retires, |at| at.min(seat.retires));
        }
    }

    /// Records received bytes that may begin a request.
    pub(super) fn heard(&mut self, id: Id, now: Instant) {
        if let Some(seat) = self.seats.get_mut(&id).filter(|seat| seat.stage == Stage::Idle) {
            (seat.stage, seat.since) = (Stage::Head, now);
        }
    }

    /// Records a complete request head. Returns `false` if nothing may be answered on this connection any more.
    pub(super) fn begin(&mut self, id: Id, now: Instant, wall: SystemTime) -> bool {
        let Some(seat) = self.seats.get_mut(&id) else { return false };
        seat.stage = match seat.stage {
            Stage::Busy(count) => Stage::Busy(count + 1),
            _ => Stage::Busy(1),
        };
        (seat.since, seat.was_asked) = (now, true);
        seat.expires.is_none_or(|at| wall < at)
    }

    /// Records that a request is answered.
    pub(super) fn end(&mut self, id: Id, now: Instant) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        if let Stage::Busy(count @ 2..) = seat.stage {
            seat.stage = Stage::Busy(count - 1);
        } else {
            (seat.stage, seat.since) = (Stage::Idle, now);
        }
    }

    /// Whether the next answer on this connection is to be the last.
    pub(super) fn is_retiring(&self, id: Id, now: Instant) -> bool {
        self.seats.get(&id).is_none_or(|seat| seat.retires <= now)
    }

    /// Removes a closed connection.
    pub(super) fn leave(&mut self, id: Id) {
        self.seats.remove(&id);
    }

    /// Makes the connections of this protocol finish their requests and accept no more.
    pub(super) fn retire_all(&self, protocol: Protocol) {
        for seat in self.seats.values().filter(|seat| seat.protocol == protocol) {
            seat.signals.retire.cancel();
        }
    }

    /// Closes every connection at once.
    pub(super) fn cut_all(&self) {
        for seat in self.seats.values() {
            seat.signals.cut.cancel();
        }
    }

    /// Closes the connections that have exceeded a time limit, and retires old HTTP/2 connections.
    pub(super) fn sweep(&mut self, now: Instant, wall: SystemTime) -> Swept {
        let mut swept = Swept::default();
        let mut overdue = Vec::new();
        for (id, seat) in &self.seats {
            let waited = now.saturating_duration_since(seat.since);
            let expired = seat.expires.is_some_and(|at| at <= wall);
            if seat.protocol == Protocol::Http2 && seat.retires <= now {
                seat.signals.retire.cancel();
            }
            match seat.stage {
                Stage::Handshake if waited >= self.limits.handshake => swept.handshakes += 1,
                Stage::Head if waited >= self.limits.head => swept.heads += 1,
                Stage::Idle if waited >= self.limits.idle || expired => {}
                _ => continue,
            }
            overdue.push(*id);
        }
        for id in overdue {
            self.cut(id);
        }
        swept
    }

    /// The connection to evict when the table is full: the one longest in its handshake or a request's head, else the one
    /// longest idle without any request, else the one longest idle.
    fn weakest(&self) -> Option<Id> {
        let rank = |seat: &ConnectionState| match seat.stage {
            Stage::Handshake | Stage::Head => Some(0),
            Stage::Idle => Some(1 + u8::from(seat.was_asked)),
            Stage::Busy(_) => None,
        };
        let candidates = self.seats.iter().filter_map(|(id, seat)| Some((rank(seat)?, seat.since, *id)));
        candidates.min().map(|(_, _, id)| id)
    }

    /// Closes a connection; its place is free at once.
    fn cut(&mut self, id: Id) {
        if let Some(seat) = self.seats.remove(&id) {
            seat.signals.cut.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WALL: SystemTime = SystemTime::UNIX_EPOCH;

    fn roster(connections: usize) -> (ConnectionTable, Instant) {
        (ConnectionTable::new(Limits { connections, ..Limits::default() }), Instant::now())
    }

    fn is_cut(signals: &Signals) -> bool {
        signals.cut.is_cancelled()
    }

    #[test]
    fn when_all_places_are_taken_the_oldest_handshake_makes_room_before_any_idle_connection() {
        let (mut roster, start) = roster(3);
        let (idle, idle_signals) = roster.enter(start).unwrap();
        roster.greeted(idle, start, Protocol::Http1, None, None);
        let (_, first) = roster.enter(start + Duration::from_secs(1)).unwrap();
        let (_, second) = roster.enter(start + Duration::from_secs(2)).unwrap();
        roster.enter(start + Duration::from_secs(3)).unwrap();
        assert!(is_cut(&first) && !is_cut(&second) && !is_cut(&idle_signals));
        assert_eq!(roster.len(), 3);
    }

    #[test]
    fn a_connection_at_work_never_makes_room_and_a_newcomer_is_turned_away_instead() {
        let (mut roster, start) = roster(1);
        let (id, signals) = roster.enter(start).unwrap();
        roster.greeted(id, start, Protocol::Http1, None, None);
        assert!(roster.begin(id, start, WALL));
        assert!(roster.enter(start).is_none() && !is_cut(&signals));
        roster.end(id, start);
        assert!(roster.enter(start).is_some() && is_cut(&signals));
    }

    #[test]
    fn one_that_sends_half_a_head_is_cut_off_and_one_that_is_idle_lives_on() {
        let (mut roster, start) = roster(9);
        let mut greeted = || {
            let (id, signals) = roster.enter(start).unwrap();
            roster.greeted(id, start, Protocol::Http1, None, None);
            (id, signals)
        };
        let ((slow, slow_signals), (_, idle_signals)) = (greeted(), greeted());
        roster.heard(slow, start);
        assert_eq!(roster.sweep(start + Limits::default().head, WALL), Swept { handshakes: 0, heads: 1 });
        assert!(is_cut(&slow_signals) && !is_cut(&idle_signals));
        assert_eq!(roster.sweep(start + Limits::default().idle, WALL), Swept::default());
        assert!(is_cut(&idle_signals), "idle for too long");
    }

    #[test]
    fn a_connection_that_has_asked_is_kept_before_one_that_never_did() {
        let (mut roster, start) = roster(2);
        let (asked, asked_signals) = roster.enter(start).unwrap();
        roster.greeted(asked, start, Protocol::Http1, None, None);
        roster.begin(asked, start, WALL);
        roster.end(asked, start);
        let (silent, silent_signals) = roster.enter(start).unwrap();
        roster.greeted(silent, start + Duration::from_secs(1), Protocol::Http1, None, None);
        roster.enter(start + Duration::from_secs(2)).unwrap();
        assert!(is_cut(&silent_signals) && !is_cut(&asked_signals));
    }

    #[test]
    fn an_http_2_connection_without_a_request_is_cut_off_and_one_between_requests_is_kept() {
        let (mut roster, start) = roster(9);
        let mut greeted = || {
            let (id, signals) = roster.enter(start).unwrap();
            roster.greeted(id, start, Protocol::Http2, None, None);
            (id, signals)
        };
        let ((_, silent), (asked, asked_signals)) = (greeted(), greeted());
        roster.begin(asked, start, WALL);
        roster.end(asked, start);
        assert_eq!(roster.sweep(start + Limits::default().head, WALL), Swept { handshakes: 0, heads: 1 });
        assert!(is_cut(&silent) && !is_cut(&asked_signals));
    }

    #[test]
    fn nothing_is_answered_on_a_connection_whose_certificate_has_expired() {
        let (mut roster, start) = roster(9);
        let at = |seconds| start + Duration::from_secs(seconds);
        let wall = |seconds| WALL + Duration::from_secs(seconds);
        let (id, signals) = roster.enter(start).unwrap();
        roster.greeted(id, start, Protocol::Http1, Some(at(50)), Some(wall(60)));
        assert!(roster.begin(id, at(49), wall(49)) && !roster.is_retiring(id, at(49)));
        roster.end(id, at(49));
        assert!(roster.begin(id, at(59), wall(59)) && roster.is_retiring(id, at(59)));
        roster.end(id, at(59));
        assert!(!roster.begin(id, at(59), wall(60)));
        roster.end(id, at(59));
        roster.sweep(at(59), wall(59));
        assert!(!is_cut(&signals));
        roster.sweep(at(59), wall(60));
        assert!(is_cut(&signals), "it waits for requests that it may not answer");
    }

    #[test]
    fn of_two_requests_at_once_the_end_of_one_leaves_the_connection_at_work() {
        let (mut roster, start) = roster(1);
        let (id, _) = roster.enter(start).unwrap();
        roster.greeted(id, start, Protocol::Http1, None, None);
        roster.begin(id, start, WALL);
        roster.begin(id, start, WALL);
        roster.end(id, start);
        assert!(roster.enter(start).is_none());
    }
}
