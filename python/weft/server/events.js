// What each server-sent event in a stream of text says, however the stream is cut; comments are left out, and "[DONE]" is no event.
async function* eventsOf(stream) {
  let text = "";
  for (const reader = stream.getReader(); ;) {
    // The last event may lack its blank line.
    const { done, value = "\n\n" } = await reader.read();
    const frames = (text + value).split(/\r?\n\r?\n/);
    text = frames.pop();
    for (const frame of frames) {
      const data = frame.split(/\r?\n/).filter(line => line.startsWith("data:")).map(line => line.slice(5).replace(/^ /, ""));
      if (data.length && data[0] !== "[DONE]") yield JSON.parse(data.join("\n"));
    }
    if (done) return;
  }
}
