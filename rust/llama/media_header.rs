//! What a file of a picture or a sound is, from its first bytes: how much memory it takes is known before it is decoded.

use std::borrow::Cow;

/// Most pixels of a picture: 192 MiB where each has three bytes.
pub const MAX_PIXELS: u64 = 64 << 20;

/// How many times longer one side of a picture may be than the other; beyond that some models' rules leave nothing of the other.
pub const MAX_RATIO: u64 = 200;

/// The longest sound, in seconds: some 110 MiB at the 16,000 samples a second that most models hear.
pub const MAX_SECONDS: u64 = 1_800;

/// Most bytes of an MP3, whose length only a look at all of it tells.
pub const MAX_MP3_BYTES: usize = 8 << 20;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// A picture.
    Image,
    /// A sound.
    Audio,
}

/// Finds out what `file` is. It comes back with lengths that are true, where a stream of unknown length was written to it.
///
/// # Errors
/// If it is none of PNG, JPEG, GIF, BMP, WAV, MP3 and FLAC, damaged at its beginning, or too large.
pub(super) fn look(file: &[u8]) -> Result<(MediaKind, Cow<'_, [u8]>), String> {
    if file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WAVE") {
        return wav(file).map(|file| (MediaKind::Audio, file));
    }
    if file.starts_with(b"fLaC") {
        return flac(file).map(|()| (MediaKind::Audio, Cow::Borrowed(file)));
    }
    if file.starts_with(b"ID3") || (file.len() >= 12 && file[0] == 0xFF && file[1] & 0xE0 == 0xE0) {
        if file.len() > MAX_MP3_BYTES {
            return Err(format!("the MP3 has {} bytes; it may have {MAX_MP3_BYTES}", file.len()));
        }
        return Ok((MediaKind::Audio, Cow::Borrowed(file)));
    }
    image(file).map(|()| (MediaKind::Image, Cow::Borrowed(file)))
}

fn image(file: &[u8]) -> Result<(), String> {
    let known = "it must be a picture in PNG, JPEG, GIF or BMP, or a sound in WAV, MP3 or FLAC";
    imagesize::image_type(file).map_err(|_| known.to_owned())?;
    let size = imagesize::blob_size(file).map_err(|error| format!("its size cannot be read: {error}"))?;
    let (width, height) = (size.width as u64, size.height as u64);
    if width == 0 || height == 0 {
        return Err(format!("a picture of {width} × {height} pixels shows nothing"));
    }
    if width.saturating_mul(height) > MAX_PIXELS {
        return Err(format!("a picture of {width} × {height} pixels is too large; it may have {MAX_PIXELS} of them"));
    }
    if width.max(height) > MAX_RATIO * width.min(height) {
        return Err(format!("a picture of {width} × {height} pixels is too narrow; one side may be {MAX_RATIO} times the other"));
    }
    Ok(())
}

/// The chunk of `name`: where its contents begin, and how many bytes it says that they are.
fn chunk(file: &[u8], name: &[u8; 4]) -> Option<(usize, u32)> {
    let mut at = 12;
    loop {
        let n_bytes = u32_at(file, at + 4)?;
        if file.get(at..at + 4)? == name {
            return Some((at + 8, n_bytes));
        }
        // Chunks begin at even places.
        at += 8 + (n_bytes as usize).next_multiple_of(2);
    }
}

fn wav(file: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    let damaged = || "the WAV is damaged: its header is cut".to_owned();
    let (format, _) = chunk(file, b"fmt ").ok_or_else(damaged)?;
    let (data, n_bytes) = chunk(file, b"data").ok_or_else(damaged)?;
    let [kind, n_channels, width, n_bits] = [0, 2, 12, 14].map(|at| u16_at(file, format + at).map(u64::from));
    let (kind, n_channels, width) = (kind.ok_or_else(damaged)?, n_channels.ok_or_else(damaged)?, width.ok_or_else(damaged)?);
    let (n_bits, rate) = (n_bits.ok_or_else(damaged)?, u64::from(u32_at(file, format + 4).ok_or_else(damaged)?));
    if n_channels == 0 || width == 0 || rate == 0 {
        return Err(format!("the WAV is damaged: {n_channels} channels of {width} bytes at {rate} a second"));
    }
    let n_left = file.len() - data;
    let n_there = n_left.min(n_bytes as usize);
    // Plain samples have whole bytes, and of all others one has half a byte at least.
    let is_plain = matches!(kind, 1 | 3 | 0xFFFE) && n_bits >= 8;
    let n_frames = if is_plain { n_there as u64 / width.min(n_channels * (n_bits / 8)) } else { n_there as u64 * 2 };
    check_length(n_frames, rate)?;
    if n_there == n_bytes as usize {
        return Ok(Cow::Borrowed(file));
    }
    let mut file = file.to_vec();
    let n_there = u32::try_from(n_there).map_err(|_| "the WAV is larger than a WAV can be".to_owned())?;
    file[data - 4..data].copy_from_slice(&n_there.to_le_bytes());
    Ok(Cow::Owned(file))
}

/// The block that every FLAC begins with (RFC 9639, section 8.2).
fn flac(file: &[u8]) -> Result<(), String> {
    let info = file.get(8..42).filter(|_| file[4] & 0x7F == 0).ok_or("the FLAC is damaged: its header is cut")?;
    let rate = u64::from(info[10]) << 12 | u64::from(info[11]) << 4 | u64::from(info[12]) >> 4;
    let low: [u8; 4] = info[14..18].try_into().map_err(|_| "the FLAC is damaged")?;
    let n_frames = u64::from(info[13] & 0xF) << 32 | u64::from(u32::from_be_bytes(low));
    if rate == 0 || n_frames == 0 {
        return Err("the FLAC does not say how long it is; write it to a file first, not to a pipe".to_owned());
    }
    check_length(n_frames, rate)
}

fn check_length(n_frames: u64, rate: u64) -> Result<(), String> {
    let n_seconds = n_frames / rate;
    if n_seconds > MAX_SECONDS {
        return Err(format!("the sound is {n_seconds} seconds long; it may be {MAX_SECONDS}"));
    }
    if n_frames < 2 {
        return Err("the sound is empty".to_owned());
    }
    Ok(())
}

fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(file.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u16_at(file: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(file.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One channel of 16 bits: `n_said` bytes as the header says, `n_there` of them.
    fn wav_of(rate: u32, n_said: u32, n_there: usize) -> Vec<u8> {
        let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
        file.extend(rate.to_le_bytes());
        file.extend((2 * rate).to_le_bytes());
        file.extend(b"\x02\0\x10\0data");
        file.extend(n_said.to_le_bytes());
        file.resize(file.len() + n_there, 0);
        file
    }

    fn refusal(file: &[u8]) -> String {
        look(file).expect_err("it is refused")
    }

    #[test]
    fn a_sound_is_measured_by_what_is_there_whatever_its_header_says() {
        assert_eq!(look(&wav_of(16_000, 64, 64)).expect("it is whole").0, MediaKind::Audio);
        let endless = wav_of(16_000, u32::MAX, 64);
        let (_, file) = look(&endless).expect("a stream was written to a pipe");
        assert_eq!(file[file.len() - 68..file.len() - 64], 64_u32.to_le_bytes());
        assert!(refusal(&wav_of(1, 20_000, 20_000)).contains("10000 seconds"), "a second for each sample");
        assert!(refusal(&wav_of(16_000, 0, 0)).contains("empty"));
        assert!(refusal(&wav_of(0, 64, 64)).contains("at 0 a second"));
        assert!(refusal(&wav_of(16_000, 64, 64)[..30]).contains("cut"));
        let mut flac = b"fLaC\0\0\0\x22".to_vec();
        flac.extend([0; 34]);
        assert!(refusal(&flac).contains("how long"));
        flac[18..26].copy_from_slice(&[0x03, 0xE8, 0, 0xF, 0xFF, 0xFF, 0xFF, 0xFF]);
        assert!(refusal(&flac).contains("seconds long"), "2³⁶ samples");
    }

    #[test]
    fn a_picture_is_measured_before_it_is_decoded() {
        let bmp = |width: i32, height: i32| {
            let mut file = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
            file.extend(width.to_le_bytes());
            file.extend(height.to_le_bytes());
            file.resize(64, 0);
            file
        };
        assert_eq!(look(&bmp(64, 64)).expect("it is small").0, MediaKind::Image);
        assert!(refusal(&bmp(60_000, 60_000)).contains("too large"));
        assert!(refusal(&bmp(60_000, 10)).contains("too narrow"));
        assert!(refusal(&bmp(0, 10)).contains("shows nothing"));
        assert!(refusal(b"no picture, and no sound").contains("PNG, JPEG, GIF or BMP"));
        assert!(refusal(b"").contains("PNG, JPEG, GIF or BMP"));
    }
}
