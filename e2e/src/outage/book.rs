//! Who has which address, by the answers that pods got.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Report;

/// Kept by all callers together.
#[derive(Default)]
pub(super) struct Book {
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    /// Address → who holds it.
    holders: HashMap<String, String>,
    report: Report,
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        // A caller that panicked has left whole lines.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call took so long.
    pub(super) fn called(&self, took: Duration) {
        let mut pages = self.pages();
        pages.report.calls += 1;
        pages.report.latencies.push(took);
    }

    /// A call failed.
    pub(super) fn failed(&self, why: String) {
        self.pages().report.failed.push(why);
    }

    /// `holder` was answered this address.
    pub(super) fn given(&self, address: &str, holder: &str) {
        let mut pages = self.pages();
        let Pages { holders, report } = &mut *pages;
        match holders.entry(address.to_owned()) {
            Entry::Occupied(other) => {
                report.doubled.push(format!("{address} is given to {holder}, and {} has it", other.get()));
            }
            Entry::Vacant(free) => drop(free.insert(holder.to_owned())),
        }
    }

    /// It is about to be given back: from now on another may get it.
    pub(super) fn returned(&self, address: &str) {
        self.pages().holders.remove(address);
    }

    /// Calls made so far.
    pub(super) fn calls(&self) -> usize {
        self.pages().report.calls
    }

    /// What came of all calls.
    pub(super) fn report(&self) -> Report {
        self.pages().report.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_given_while_another_has_it_is_told() {
        let book = Book::default();
        book.given("10.0.0.1", "a");
        book.returned("10.0.0.1");
        book.given("10.0.0.1", "b");
        assert!(book.report().doubled.is_empty());
        book.given("10.0.0.1", "c");
        let doubled = book.report().doubled;
        assert!(doubled.len() == 1 && doubled[0].contains("10.0.0.1 is given to c, and b has it"), "{doubled:?}");
    }
}
