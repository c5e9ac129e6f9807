use super::named_variants;

named_variants! {
    /// Whether likely tokens are drafted and verified in one decode.
    pub enum SpeculationMode {
        Off = "off",
        /// Only where results do not depend on the rows of a decode, so that drafts change no text.
        Auto = "auto",
        On = "on",
    }
}
