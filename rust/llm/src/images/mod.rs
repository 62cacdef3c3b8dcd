//! Image generation in a canonical form.

pub mod image_formats;
pub(crate) mod request;
