//! What the Controllers want the Lease to say, and what it says: the two ends between them and the election.

use ipam_reconciler::given::{Wish, Word};
use tokio::sync::watch;

/// The Controllers' end: what they want of the Lease, and what they may rely upon.
#[derive(Clone, Debug)]
pub struct Mark {
    wish: watch::Sender<Wish>,
    word: watch::Receiver<Word>,
}

/// The end of whoever writes the Lease.
#[derive(Debug)]
pub struct Keeper {
    wish: watch::Receiver<Wish>,
    word: watch::Sender<Word>,
}

/// Both ends.
pub fn mark() -> (Mark, Keeper) {
    let ((wish, wished), (say, word)) = (watch::channel(Wish::default()), watch::channel(Word::default()));
    (Mark { wish, word }, Keeper { wish: wished, word: say })
}

impl Mark {
    /// What may be relied upon.
    pub fn word(&self) -> Word {
        *self.word.borrow()
    }

    /// Requests this of the Lease. Only a leader may call it.
    pub fn want(&self, wish: Wish) {
        self.wish.send_if_modified(|wanted| std::mem::replace(wanted, wish) != wish);
    }

    /// Waits until something else may be relied upon.
    pub async fn changed(&mut self) {
        if self.word.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Keeper {
    /// What is wanted of the Lease.
    pub fn wish(&self) -> Wish {
        *self.wish.borrow()
    }

    /// Tells what may be relied upon.
    pub fn say(&self, word: Word) {
        self.word.send_if_modified(|said| std::mem::replace(said, word) != word);
    }

    /// Waits until calls wait for a write of the Lease: more care is newly asked for than the Lease is known to say, or one more write.
    /// A write that failed is repeated with the next renewal.
    pub async fn presses(&mut self) {
        loop {
            if self.wish.changed().await.is_err() {
                return std::future::pending().await;
            }
            let (wish, word) = (*self.wish.borrow_and_update(), *self.word.borrow());
            if wish.given > Some(word.given) || wish.confirm > word.confirmed {
                return;
            }
        }
    }

    /// Grants what is wanted, where there is no Lease to outlive this process.
    pub async fn grant_all(mut self) {
        while self.wish.changed().await.is_ok() {
            let wish = *self.wish.borrow_and_update();
            self.say(wish.granted());
        }
    }
}
