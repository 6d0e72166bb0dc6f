//! Scopes: asynchronous calls whose buffers stay borrowed until they are complete.

use std::marker::PhantomData;

use super::Communicator;
use crate::error::Result;
use crate::request::Request;
use crate::stream::{Stream, Turn};

/// Asynchronous calls on one communicator, begun by [`Communicator::scope`].
///
/// Buffers must outlive the scope, not only the closure that is given it:
///
/// ```compile_fail,E0597
/// # ccl::local::run(2, |comm| {
/// comm.scope(|scope| {
///     let mut gone_too_early = vec![1.0f32; 1000];
///     scope.start(ccl::Request::all_reduce_in_place(&mut gone_too_early, ccl::ReduceOp::Sum))
/// })
/// # }).unwrap();
/// ```
///
/// and nobody else may use them meanwhile:
///
/// ```compile_fail,E0506
/// # ccl::local::run(2, |comm| {
/// let mut buffer = vec![1.0f32; 1000];
/// comm.scope(|scope| {
///     scope.start(ccl::Request::all_reduce_in_place(&mut buffer, ccl::ReduceOp::Sum))?;
///     buffer[0] = 2.0;
///     Ok(())
/// })
/// # }).unwrap();
/// ```
pub struct Scope<'env> {
    communicator: &'env Communicator,
    /// Invariant: a closure that could take a shorter `'env` could give away what ends with it.
    env: PhantomData<&'env mut &'env ()>,
}

impl<'env> Scope<'env> {
    /// Starts a call and returns at once. It progresses while this thread waits for anything on the
    /// communicator, and on the progress thread otherwise.
    ///
    /// # Errors
    ///
    /// A usage error, or the communicator's failure.
    pub fn start(&self, request: Request<'env>) -> Result<()> {
        self.start_on(&Stream::new(), request)
    }

    /// Starts a call after everything that `stream` has been given before.
    ///
    /// # Errors
    ///
    /// As [`Scope::start`].
    pub fn start_on(&self, stream: &Stream, mut request: Request<'env>) -> Result<()> {
        let shared = self.communicator.share()?;
        let turn = Turn::new(stream, &shared);
        let submitted = shared.with(|engine| engine.submit_alone(&mut request, Some(turn)));
        submitted.unwrap_or_else(|| Err(super::closed()))
    }

    /// Waits for everything started so far on this communicator.
    ///
    /// # Errors
    ///
    /// The first error of any call.
    pub fn wait(&self) -> Result<()> {
        self.communicator.with_engine(|engine| engine.finish())
    }
}

impl Drop for Scope<'_> {
    /// Waits for what is outstanding, so that no borrow ends early, also when unwinding.
    fn drop(&mut self) {
        // An error ends all operations of the engine, which is all that matters here; `scope`
        // reports it.
        let _ = self.wait();
    }
}

impl Communicator {
    /// Runs `body`, which may start asynchronous calls, and waits for them.
    ///
    /// Buffers given to [`Scope::start`] stay borrowed until this function returns.
    ///
    /// # Errors
    ///
    /// `body`'s error, or the first error of any call.
    ///
    /// ```
    /// # ccl::local::run(2, |comm| {
    /// let (mut a, mut b) = (vec![1.0f32; 1000], vec![2.0f32; 1000]);
    /// comm.scope(|scope| {
    ///     scope.start(ccl::Request::all_reduce_in_place(&mut a, ccl::ReduceOp::Sum))?;
    ///     scope.start(ccl::Request::all_reduce_in_place(&mut b, ccl::ReduceOp::Sum))
    /// })?;
    /// assert_eq!((a[0], b[999]), (2.0, 4.0));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn scope<'env, R>(&'env self, body: impl FnOnce(&Scope<'env>) -> Result<R>) -> Result<R> {
        let scope = Scope { communicator: self, env: PhantomData };
        let result = body(&scope)?;
        scope.wait()?;
        Ok(result)
    }
}
