//! Credentials that take more than a header: what is signed anew for every request.

mod sigv4;

use std::time::SystemTime;

use crate::{
    call::Target,
    error::{Error, Result},
};

/// Signs a rendered head with the body that goes with it, where the target's requests are signed.
pub fn sign(target: &Target<'_>, head: &mut Vec<u8>, body: &[u8]) -> Result<()> {
    let provider = target.provider;
    let lacks = |message| Error::OptionInvalid { provider: provider.slug(), message };
    let Some(signature) = provider.signature(&target.options).map_err(lacks)? else { return Ok(()) };
    sigv4::sign(&signature, head, (&target.base.origin.authority(), body), SystemTime::now()).map_err(lacks)
}
