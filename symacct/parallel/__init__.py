"""What each of many devices holds, computes and sends: tensor, sequence, context, expert, pipeline and data parallel."""
