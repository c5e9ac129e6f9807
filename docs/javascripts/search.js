// Searches for flags: the search engine reads the dashes of `--cache-ram` as "not".
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (typeof message?.data === "string") message = { ...message, data: message.data.replace(/(^|\s)-+(?=\w)/g, "$1") };
  return send.call(this, message, ...rest);
};
