//! Decodes image and audio files to pixels and samples, with bounded memory.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler};
use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::errors::Error as AudioError;
use symphonia::core::formats::FormatOptions;
use symphonia::core::formats::TrackType;
use symphonia::core::formats::probe::Hint;
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

/// Maximum number of pixels of an image: 192 MiB at three bytes per pixel.
pub const MAX_PIXELS: u64 = 64 << 20;

/// Maximum aspect ratio of an image; beyond it, some models' resizing rules leave no pixels of the shorter side.
pub const MAX_RATIO: u64 = 200;

/// Maximum duration of audio, in seconds.
pub const MAX_SECONDS: u64 = 900;

/// Maximum memory of an image decoder beyond the pixels, in bytes.
const MAX_DECODER_BYTES: u64 = 512 << 20;

const RATES: std::ops::RangeInclusive<u32> = 1_000..=384_000;

/// Samples per channel, all of which are kept in memory: [`MAX_SECONDS`] at 48 kHz.
const MAX_SAMPLES: u64 = 48_000 * MAX_SECONDS;

/// Minimum duration of audio, as a fraction of a second; shorter audio is padded with silence.
const MIN_DURATION_DIVISOR: u32 = 10;

const CHUNK: usize = 1_024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    Image,
    Audio,
}

#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) rgb: Vec<u8>,
}

pub(crate) fn kind_of(file: &[u8]) -> Result<MediaKind, String> {
    let is_mp3 = file.starts_with(b"ID3") || (file.len() >= 12 && file[0] == 0xFF && file[1] & 0xE0 == 0xE0);
    let is_wav = file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WAVE");
    if is_wav || is_mp3 || file.starts_with(b"fLaC") || file.starts_with(b"OggS") {
        return Ok(MediaKind::Audio);
    }
    match image::guess_format(file) {
        Ok(ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::Gif | ImageFormat::Bmp | ImageFormat::WebP) => {
            Ok(MediaKind::Image)
        }
        _ => Err("it must be an image (PNG, JPEG, GIF, BMP or WebP) or audio (WAV, MP3, FLAC or Ogg Vorbis)".to_owned()),
    }
}

pub(crate) fn decode_image(file: &[u8]) -> Result<Image, String> {
    let damaged = |error: image::ImageError| format!("the image is damaged: {error}");
    let mut reader = ImageReader::new(Cursor::new(file)).with_guessed_format().map_err(|error| error.to_string())?;
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(MAX_DECODER_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    let (long, short) = (u64::from(width.max(height)), u64::from(width.min(height)));
    if short == 0 {
        return Err(format!("the image of {width} × {height} pixels is empty"));
    }
    if long * short > MAX_PIXELS {
        return Err(format!("the image of {width} × {height} pixels is too large; it may have at most {MAX_PIXELS} pixels"));
    }
    if long > MAX_RATIO * short {
        let rule = format!("its aspect ratio may be at most {MAX_RATIO} to 1");
        return Err(format!("the image of {width} × {height} pixels is too narrow; {rule}"));
    }
    let orientation = decoder.orientation().map_err(damaged)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    image.apply_orientation(orientation);
    let pixels = image.into_rgb8();
    Ok(Image { width: pixels.width(), height: pixels.height(), rgb: pixels.into_raw() })
}

pub(crate) fn decode_audio(file: &[u8], rate: u32) -> Result<Vec<f32>, String> {
    let (own_rate, mut samples) = decoded(file)?;
    if samples.is_empty() {
        return Err("the audio is empty".to_owned());
    }
    for sample in &mut samples {
        *sample = sample.clamp(-1.0, 1.0);
    }
    let mut samples = if own_rate == rate { samples } else { resampled(&samples, own_rate, rate)? };
    let n_min = (rate / MIN_DURATION_DIVISOR) as usize;
    if samples.len() < n_min {
        samples.resize(n_min, 0.0);
    }
    Ok(samples)
}

fn decoded(file: &[u8]) -> Result<(u32, Vec<f32>), String> {
    let damaged = |error: AudioError| format!("the audio is damaged: {error}");
    let bytes: Box<[u8]> = file.into();
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), MediaSourceStreamOptions::default());
    let probe = symphonia::default::get_probe();
    let mut format = probe.probe(&Hint::new(), stream, FormatOptions::default(), MetadataOptions::default()).map_err(damaged)?;
    let track = format.default_track(TrackType::Audio).ok_or("the file contains no audio track")?;
    let id = track.id;
    let params =
        track.codec_params.as_ref().and_then(|params| params.audio()).ok_or("the codec of the audio track is unknown")?;
    let codecs = symphonia::default::get_codecs();
    let mut decoder = codecs.make_audio_decoder(params, &AudioDecoderOptions::default()).map_err(damaged)?;
    let mut samples = Vec::new();
    let (mut packet_samples, mut rate, mut failure) = (Vec::<f32>::new(), None, None);
    // A truncated file has no next packet.
    while let Ok(Some(packet)) = format.next_packet() {
        if packet.track_id != id {
            continue;
        }
        let buffer = match decoder.decode(&packet) {
            Ok(buffer) => buffer,
            Err(AudioError::DecodeError(reason)) => {
                failure = Some(reason);
                continue;
            }
            Err(error) => return Err(damaged(error)),
        };
        let (n_channels, own_rate) = (buffer.spec().channels().count().max(1), buffer.spec().rate());
        if !RATES.contains(&own_rate) || rate.is_some_and(|rate| rate != own_rate) {
            let (min, max) = (RATES.start(), RATES.end());
            return Err(format!("the audio has a sample rate of {own_rate} Hz; it must be {min} to {max} Hz, and constant"));
        }
        rate = Some(own_rate);
        packet_samples.resize(buffer.samples_interleaved(), 0.0);
        buffer.copy_to_slice_interleaved(&mut packet_samples);
        #[expect(clippy::cast_precision_loss, reason = "there are few channels")]
        samples.extend(packet_samples.chunks_exact(n_channels).map(|frame| frame.iter().sum::<f32>() / n_channels as f32));
        if packet_samples.iter().any(|sample| !sample.is_finite()) {
            return Err("the audio is damaged: it has samples that are not finite".to_owned());
        }
        let n_samples = samples.len() as u64;
        if n_samples > MAX_SAMPLES || n_samples / u64::from(own_rate) > MAX_SECONDS {
            return Err(format!("the audio is too long; it may have at most {MAX_SECONDS} seconds and {MAX_SAMPLES} samples"));
        }
    }
    match (rate, failure) {
        (Some(rate), _) => Ok((rate, samples)),
        (None, Some(reason)) => Err(format!("the audio is damaged: {reason}")),
        (None, None) => Err("the audio is empty".to_owned()),
    }
}

fn resampled(samples: &[f32], from: u32, to: u32) -> Result<Vec<f32>, String> {
    let refuse = |reason: &dyn std::fmt::Display| format!("the audio of {from} Hz cannot be resampled to {to} Hz: {reason}");
    let mut resampler = Fft::<f32>::new(from as usize, to as usize, CHUNK, 1, FixedSync::Both).map_err(|error| refuse(&error))?;
    let input = InterleavedSlice::new(samples, 1, samples.len()).map_err(|error| refuse(&error))?;
    let output = resampler.process_all(&input, samples.len(), None).map_err(|error| refuse(&error))?;
    Ok(output.take_data())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates one 16-bit channel: the header declares `n_declared` bytes, the file has `n_present`.
    fn wav_of(rate: u32, n_declared: u32, n_present: usize) -> Vec<u8> {
        let mut file = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
        file.extend(rate.to_le_bytes());
        file.extend((2 * rate).to_le_bytes());
        file.extend(b"\x02\0\x10\0data");
        file.extend(n_declared.to_le_bytes());
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "numbers are small")]
        let sine = (0..n_present / 2).map(|i| (f64::sin(i as f64 * 0.05) * 10_000.0) as i16);
        file.extend(sine.flat_map(i16::to_le_bytes));
        file
    }

    /// Creates an image with 24 bits per pixel; top-down if `height` is negative.
    fn bmp_of(width: i32, height: i32) -> Vec<u8> {
        let n_bytes = (3 * width * height.abs()).cast_unsigned();
        let mut file = b"BM".to_vec();
        let size = [width, height].map(i32::cast_unsigned);
        for number in [54 + n_bytes, 0, 54, 40, size[0], size[1], 1 | 24 << 16, 0, n_bytes, 0, 0, 0, 0] {
            file.extend(number.to_le_bytes());
        }
        file.extend((0..n_bytes).map(|i| (i % 251) as u8));
        file
    }

    #[test]
    fn pixels_are_rgb_from_the_top_down() {
        assert_eq!(kind_of(&bmp_of(4, 2)), Ok(MediaKind::Image));
        let down = decode_image(&bmp_of(4, -2)).expect("the file is valid");
        assert_eq!((down.width, down.height, &down.rgb[..6]), (4, 2, &[2, 1, 0, 5, 4, 3][..]));
        let up = decode_image(&bmp_of(4, 2)).expect("the file is valid");
        assert_eq!(up.rgb[..6], [14, 13, 12, 17, 16, 15]);
    }

    #[test]
    fn image_formats_decode_alike_with_their_orientation_applied() {
        let files: [&[u8]; 6] = [
            include_bytes!("../../../tests/media/quarters.png"),
            include_bytes!("../../../tests/media/quarters.bmp"),
            include_bytes!("../../../tests/media/quarters.gif"),
            include_bytes!("../../../tests/media/quarters.webp"),
            include_bytes!("../../../tests/media/quarters.jpg"),
            include_bytes!("../../../tests/media/quarters-turned.jpg"),
        ];
        for file in files {
            assert_eq!(kind_of(file), Ok(MediaKind::Image));
            let Image { width, height, rgb } = decode_image(file).expect("the file is valid");
            assert_eq!((width, height), (48, 24));
            for ((x, y), color) in
                [((6, 6), [220, 30, 30]), ((40, 6), [30, 200, 30]), ((6, 18), [30, 30, 220]), ((40, 18), [240, 240, 240])]
            {
                let offset = 3 * (48 * y + x);
                let difference =
                    rgb[offset..offset + 3].iter().zip(color).map(|(&actual, expected)| actual.abs_diff(expected)).max();
                assert!(difference < Some(24), "{:?} at {x}, {y} of {:?}", &rgb[offset..offset + 3], image::guess_format(file));
            }
        }
    }

    #[test]
    fn audio_formats_decode_alike() {
        let files: [&[u8]; 4] = [
            include_bytes!("../../../tests/media/tone.wav"),
            include_bytes!("../../../tests/media/tone.flac"),
            include_bytes!("../../../tests/media/tone.ogg"),
            include_bytes!("../../../tests/media/tone.mp3"),
        ];
        for (file, loudness) in files.into_iter().zip([0.3, 0.225, 0.225, 0.225]) {
            assert_eq!(kind_of(file), Ok(MediaKind::Audio));
            let samples = decode_audio(file, 16_000).expect("the file is valid");
            assert!((3_100..4_600).contains(&samples.len()), "a fifth of a second has {} samples", samples.len());
            let middle = &samples[1_000..2_600];
            let n_cycles = middle.windows(2).filter(|pair| pair[0] < 0.0 && pair[1] >= 0.0).count();
            assert!((43..46).contains(&n_cycles), "440 a second turn {n_cycles} times in a tenth of one");
            let loudest = middle.iter().fold(0.0, |loudest: f32, sample| loudest.max(sample.abs()));
            assert!((loudest - loudness).abs() < 0.03, "{loudest}");
        }
    }

    #[test]
    fn oversized_images_are_rejected_by_their_headers() {
        let refused = |width, height| {
            let mut file = bmp_of(4, 4);
            file[18..22].copy_from_slice(&i32::to_le_bytes(width));
            file[22..26].copy_from_slice(&i32::to_le_bytes(height));
            decode_image(&file).err().unwrap_or_default()
        };
        assert!(refused(30_000, 30_000).contains("too large"), "{}", refused(30_000, 30_000));
        assert!(refused(4_000, 2).contains("too narrow"), "{}", refused(4_000, 2));
        assert!(refused(400, 400).contains("damaged"), "{}", refused(400, 400));
    }

    #[test]
    fn audio_is_mixed_and_resampled_to_the_requested_rate() {
        let file = wav_of(16_000, 32_000, 32_000);
        assert_eq!(kind_of(&file), Ok(MediaKind::Audio));
        let samples = decode_audio(&file, 16_000).expect("the file is valid");
        assert_eq!(samples.len(), 16_000);
        assert!((f64::from(samples[100]) - f64::sin(5.0) * 10_000.0 / 32_768.0).abs() < 1e-3);
        let slower = decode_audio(&wav_of(48_000, 96_000, 96_000), 16_000).expect("the file is valid");
        assert!((15_990..16_010).contains(&slower.len()), "{}", slower.len());
        assert!((f64::from(slower[8_000]) - f64::sin(24_000.0 * 0.05) * 10_000.0 / 32_768.0).abs() < 0.02);
    }

    #[test]
    fn truncated_audio_ends_early_and_short_audio_is_padded() {
        assert_eq!(decode_audio(&wav_of(16_000, u32::MAX, 8_000), 16_000).map(|samples| samples.len()), Ok(4_000));
        let short = decode_audio(&wav_of(16_000, 4, 4), 16_000).expect("the file is valid");
        assert_eq!((short.len(), short[2..].iter().all(|&sample| sample == 0.0)), (1_600, true));
        assert!(decode_audio(&wav_of(16_000, 0, 0), 16_000).is_err_and(|reason| reason.contains("empty")));
        assert!(decode_audio(&wav_of(10, 400, 400), 16_000).is_err_and(|reason| reason.contains("sample rate of 10 Hz")));
    }

    #[test]
    fn non_finite_samples_are_rejected_and_loud_ones_clipped() {
        let mut file = include_bytes!("../../../tests/media/tone.wav").to_vec();
        let n = file.len();
        for (sample, rest) in [(f32::NAN, None), (f32::INFINITY, None), (f32::MAX, Some(1.0))] {
            file[n - 4_000..n - 3_996].copy_from_slice(&sample.to_le_bytes());
            let read = decode_audio(&file, 22_050);
            assert_eq!(read.as_ref().ok().map(|samples| samples.iter().fold(0.0, |a: f32, b| a.max(*b))), rest, "{sample}");
            assert!(decode_audio(&file, 16_000).is_ok() == rest.is_some());
        }
    }

    #[test]
    fn overlong_audio_is_rejected() {
        let n_bytes = 2 * 1_000 * u32::try_from(MAX_SECONDS + 2).expect("small");
        let refused = decode_audio(&wav_of(1_000, n_bytes, n_bytes as usize), 16_000);
        assert!(refused.is_err_and(|reason| reason.contains("at most 900 seconds")));
    }

    #[test]
    fn corrupt_headers_are_rejected_or_decode_a_bounded_amount() {
        let mut file = wav_of(16_000, 32_000, 32_000);
        for (offset, byte) in [(20, 2), (20, 17), (20, 0), (22, 0), (22, 255), (32, 0), (34, 0), (34, 255), (24, 255), (16, 255)]
        {
            let before = std::mem::replace(&mut file[offset], byte);
            assert!(decode_audio(&file, 16_000).map_or(true, |samples| samples.len() < 1 << 20), "byte {offset} as {byte}");
            file[offset] = before;
        }
        // Inside an ID3 tag: a FLAC header that declares 2³⁶ samples.
        let mut tagged = b"ID3\x04\0\0\0\0\0\x0afLaC\x80\0\0\x22".to_vec();
        tagged.extend([0x10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x03, 0xE8, 0x00, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
        tagged.extend([0; 200]);
        assert!(decode_audio(&tagged, 16_000).is_err());
        assert!(kind_of(b"<svg/>").is_err_and(|reason| reason.contains("PNG")));
    }
}
