//! Mail: requests of other threads to this one, and results for futures that moved to them.

use super::deferred::Deferred;
use super::state::Driver;
use crate::driver::elsewhere::iothreads;
use crate::driver::mail::shared::{Mail, RemoteRequest};
use crate::driver::refused::{Refused, warn_of_no_ring};
use crate::driver::slots::key::Key;
use crate::driver::slots::slot::{Owner, State};
use crate::driver::slots::wake::Wake;

impl Driver {
    /// Starts a remote request on this thread's ring, unless it was withdrawn.
    fn start_remote(&mut self, remote: RemoteRequest, deferred: &mut Deferred) {
        if !remote.is_wanted() {
            return deferred.remotes.push((remote, Some(libc::ECANCELED)));
        }
        self.start_wanted(remote, deferred);
    }

    /// Starts a remote request on this thread's ring, or gives it to the workers if there is none.
    pub(super) fn start_wanted(&mut self, mut remote: RemoteRequest, deferred: &mut Deferred) {
        match self.may_start(&remote.target, &remote.request, false) {
            Ok(ring) => {
                let Some(handler) = remote.take_handler() else { return };
                self.counts.io_thread_ops += u64::from(iothreads::is_this_one());
                let mut wake = Wake::Handler(handler, remote.index);
                self.queue(&remote.target, &remote.request, &mut remote.memory, ring, &mut wake);
            }
            Err(Refused::Unsupported) => deferred.remotes.push((remote, None)),
            Err(Refused::NoRing(lack)) if !remote.target.lanes.insists(remote.request.kind) => {
                warn_of_no_ring(lack);
                deferred.remotes.push((remote, None));
            }
            Err(refused) => deferred.remotes.push((remote, Some(refused.to_errno()))),
        }
    }

    #[cold]
    pub(super) fn end_elsewhere(&mut self, key: Key, owner: Owner, deferred: &mut Deferred) {
        match owner {
            Owner::Here => {}
            Owner::Remote => self.hand_over(key, deferred),
            Owner::None => deferred.buffers.push(self.slots.take(key.slot()).memory),
        }
    }

    /// Stores a result where a future that moved to another thread finds it.
    #[cold]
    fn hand_over(&mut self, key: Key, deferred: &mut Deferred) {
        let finished = self.slots.take(key.slot());
        let mut inner = self.shared.lock();
        inner.finished.insert(key, finished);
        deferred.wakers.extend(inner.wakers.remove(&key));
    }

    pub(super) fn read_mail(&mut self, deferred: &mut Deferred) {
        if !self.shared.sleep.take_mail_flag() {
            return;
        }
        let mut remotes = std::mem::take(&mut self.spare_remotes);
        let mail = {
            let mut inner = self.shared.lock();
            std::mem::swap(&mut remotes, &mut inner.remotes);
            std::mem::take(&mut inner.mail)
        };
        for remote in remotes.drain(..) {
            self.start_remote(remote, deferred);
        }
        self.spare_remotes = remotes;
        mail.into_iter().for_each(|letter| self.read_letter(letter, deferred));
    }

    pub(super) fn read_letter(&mut self, letter: Mail, deferred: &mut Deferred) {
        match letter {
            Mail::Watch(key) => self.watch(key, deferred),
            Mail::Cancel(key) => self.cancel_for_remote(key, deferred),
            Mail::CancelRemote(handler) => {
                self.cancel_handler(&handler, deferred);
                deferred.handlers.push(handler);
            }
            Mail::CancelGuarded(driver) => {
                let guarding = self.slots.guarding(driver);
                guarding.into_iter().for_each(|key| self.cancel_on_stream(key, deferred));
            }
        }
    }

    fn cancel_for_remote(&mut self, key: Key, deferred: &mut Deferred) {
        let Some(slot) = self.slots.get(key) else {
            // Its result was delivered while the message was on its way.
            let finished = self.shared.lock().finished.remove(&key);
            return deferred.buffers.extend(finished.map(|finished| finished.memory));
        };
        slot.marks.set_owner(Owner::Here);
        if let Some((memory, wake, closed)) = self.cancel(key) {
            deferred.buffers.push(memory);
            deferred.wake(wake);
            deferred.files.extend(closed.map(|unused| *unused));
        }
    }

    fn watch(&mut self, key: Key, deferred: &mut Deferred) {
        let Some(slot) = self.slots.get(key) else {
            // The future moved back and took its result while the message was on its way.
            return deferred.wakers.extend(self.shared.lock().wakers.remove(&key));
        };
        slot.marks.set_owner(Owner::Remote);
        deferred.wake(std::mem::take(&mut slot.wake));
        if slot.state == State::Done {
            self.hand_over(key, deferred);
        }
    }
}
