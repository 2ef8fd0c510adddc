//! How many images a request carries: which of the oldest are left out.

use playhouse_messages::{
    content::ContentBlock,
    event::Seq,
    history::History,
    message::Message,
    surface::{ImageOffload, OffloadTarget},
};
use serde_json::Value;

/// How many images a request may carry, and in which portions the oldest are left out beyond that.
///
/// Portions keep the cut where it is while the conversation grows, so that the requests of many steps
/// begin with the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageBudget {
    /// How many images a request may show.
    pub images_max: usize,
    /// Images are left out in multiples of this; from 1 to `images_max`.
    pub images_quantum: usize,
    /// How many bytes they may have, as they are stored: inline they are a third longer.
    pub bytes_max: u64,
    /// Bytes are left out in multiples of this; from 1 to `bytes_max`.
    pub bytes_quantum: u64,
}

const MIB: u64 = 1024 * 1024;

impl Default for ImageBudget {
    /// 600 images in portions of 20, 20 MiB in portions of 10 MiB.
    fn default() -> Self {
        Self { images_max: 600, images_quantum: 20, bytes_max: 20 * MIB, bytes_quantum: 10 * MIB }
    }
}

impl ImageBudget {
    /// Whether the portions are within their bounds; if not, why.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, quantum: u64, max: u64| match quantum {
            0 => Err(format!("the {name} quantum must be positive")),
            _ if quantum > max => Err(format!("the {name} quantum {quantum} is more than {max}")),
            _ => Ok(()),
        };
        within("image", self.images_quantum as u64, self.images_max as u64)?;
        within("byte", self.bytes_quantum, self.bytes_max)
    }

    /// How many of the oldest images are left out, given the bytes of all that the conversation ever
    /// showed, oldest first. Never less for a conversation that goes on.
    pub fn cut(&self, sizes: &[u64]) -> usize {
        let excess = sizes.len().saturating_sub(self.images_max);
        let images = excess.next_multiple_of(self.images_quantum.max(1));
        let total = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
        let excess = total.saturating_sub(self.bytes_max);
        let quantum = self.bytes_quantum.max(1);
        let bytes = excess.div_ceil(quantum).saturating_mul(quantum);
        // Whole portions are passed, not just reached: otherwise the very next image would cut again.
        let passed = |dropped: u64| match excess {
            0 => true,
            _ if quantum == 1 => dropped >= bytes,
            _ => dropped > bytes,
        };
        let mut dropped: u64 = 0;
        for (count, size) in sizes.iter().enumerate() {
            if count >= images && passed(dropped) {
                return count;
            }
            dropped = dropped.saturating_add(*size);
        }
        // Also a last image that is too large by itself: words stand in its place.
        sizes.len()
    }
}

/// An image of the surface, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SurfaceImage {
    /// The node that shows it.
    pub seq: Seq,
    /// Its position among the node's images.
    pub index: usize,
    /// How many bytes it has; 0 if its record does not say.
    pub bytes: u64,
    /// It is left out already.
    pub offloaded: bool,
}

/// All images that the model sees or saw, oldest first.
pub fn surface_images(history: &History) -> Vec<SurfaceImage> {
    let images = history.iter().flat_map(|entry| {
        images(&entry.message).enumerate().map(|(index, (bytes, offloaded))| SurfaceImage {
            seq: entry.seq,
            index,
            bytes,
            offloaded,
        })
    });
    images.collect()
}

/// The bytes of a message's images, and whether they are left out.
pub fn images(message: &Message) -> impl Iterator<Item = (u64, bool)> {
    message.content.iter().filter_map(|block| match block {
        ContentBlock::Image { attachment, offloaded } => {
            let bytes = attachment.get("bytes").and_then(Value::as_u64);
            Some((bytes.unwrap_or(0), *offloaded))
        }
        _ => None,
    })
}

/// The event that leaves these images out; `None` if all of them are out already.
pub fn offload<'a>(images: impl IntoIterator<Item = &'a SurfaceImage>) -> Option<ImageOffload> {
    let mut targets: Vec<OffloadTarget> = Vec::new();
    for image in images.into_iter().filter(|image| !image.offloaded) {
        match targets.last_mut().filter(|target| target.seq == image.seq) {
            Some(target) => target.image_indexes.push(image.index),
            None => {
                targets.push(OffloadTarget { seq: image.seq, image_indexes: vec![image.index] });
            }
        }
    }
    (!targets.is_empty()).then_some(ImageOffload { targets })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn budget(images: (usize, usize), bytes: (u64, u64)) -> ImageBudget {
        ImageBudget {
            images_max: images.0,
            images_quantum: images.1,
            bytes_max: bytes.0,
            bytes_quantum: bytes.1,
        }
    }

    mod scenario {
        use super::*;

        #[test]
        fn llm_36_the_cut_stays_while_the_conversation_grows() {
            let files = budget((600, 20), (128 * MIB, 64 * MIB));
            let cut = |images: usize| files.cut(&vec![MIB; images]);
            assert_eq!((cut(0), cut(128)), (0, 0));
            for images in 129..=192 {
                assert_eq!(cut(images), 65, "{images}");
            }
            assert_eq!(cut(193), 129);
            let small = |images: usize| ImageBudget::default().cut(&vec![1; images]);
            assert_eq!((small(600), small(601), small(620), small(621)), (0, 20, 20, 40));
        }
    }

    #[test]
    fn a_quantum_of_one_cuts_exactly() {
        let exact = budget((3, 1), (10, 1));
        assert_eq!(exact.cut(&[4, 4, 2]), 0);
        assert_eq!(exact.cut(&[4, 4, 3]), 1);
        assert_eq!(exact.cut(&[0, 0, 0, 0]), 1);
        assert_eq!(exact.cut(&[11]), 1, "too large by itself");
        assert_eq!(budget((3, 1), (10, 5)).cut(&[5, 5, 1]), 2, "a whole portion is passed");
    }

    #[test]
    fn a_quantum_is_positive_and_within_its_limit() {
        assert_eq!(ImageBudget::default().check(), Ok(()));
        for bad in [
            budget((1, 0), (1, 1)),
            budget((1, 2), (1, 1)),
            budget((1, 1), (1, 0)),
            budget((1, 1), (1, 2)),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_out_already_is_not_named_again() {
        let image = |seq, index, offloaded| SurfaceImage { seq, index, bytes: 1, offloaded };
        let images =
            [image(2, 0, true), image(2, 1, false), image(2, 2, false), image(9, 0, false)];
        let targets = offload(&images).unwrap().targets;
        let named: Vec<_> = targets.iter().map(|it| (it.seq, it.image_indexes.clone())).collect();
        assert_eq!(named, [(2, vec![1, 2]), (9, vec![0])]);
        assert_eq!(offload(&images[..1]), None);
    }

    proptest! {
        #[test]
        fn the_cut_never_moves_back_and_leaves_what_fits(
            sizes in prop::collection::vec(0_u64..50, 0..80),
            images in (1_usize..20, 1_usize..20),
            bytes in (1_u64..200, 1_u64..200),
        ) {
            let budget = budget((images.0, images.1.min(images.0)), (bytes.0, bytes.1.min(bytes.0)));
            let mut before = 0;
            for end in 0..=sizes.len() {
                let cut = budget.cut(&sizes[..end]);
                prop_assert!(before <= cut && cut <= end, "{before} then {cut} of {end}");
                prop_assert!(end - cut <= budget.images_max);
                prop_assert!(sizes[cut..end].iter().sum::<u64>() <= budget.bytes_max);
                before = cut;
            }
        }
    }
}
